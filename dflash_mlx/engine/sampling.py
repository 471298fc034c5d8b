"""The one rule of choice: which token the target takes at a position.

The choice is a pure function of the logits, the tokens before it, the seed and the absolute
position. Greedy or sampled, alone or as a row of a block, it is the same function, so a draft is
right exactly when it equals the choice, and drafting changes speed only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from .noise import Key, gumbel
from .options import Processor, Sampling

_DRAFT_CANDIDATES = 64
"""How many of its tokens a drafter ranks when sampling: they only guess, so fewer cost nothing."""


@dataclass(frozen=True)
class Chooser:
    """Chooses tokens for one generation: how (`sampling`) and with which noise (`key`)."""

    sampling: Sampling
    key: Key = (0, 0)
    processors: tuple[Processor, ...] = ()

    def choose(self, logits: mx.array, history: Sequence[int], drafts: mx.array) -> mx.array:
        """The target's choices for the rows of a block.

        logits: [L, V], row j after `history` and the first j drafts; drafts: [L-1] token ids.
        Returns [L] int32: row j's is the token at position `len(history) + j`.
        """
        logits = _penalized(logits.astype(mx.float32), self.sampling, history, drafts)
        return _pick(logits, self.sampling, self.key, len(history))

    def draft(self, logits: mx.array, history: Sequence[int]) -> mx.array:
        """A drafter's guesses, [n] int32, from its logits [n, V] for the positions after `history`.

        The target's own rule and noise, except that penalties cannot see the drafts of this block.
        """
        sampling = self.sampling
        if not sampling.greedy:
            limit = min(sampling.top_k or _DRAFT_CANDIDATES, _DRAFT_CANDIDATES)
            sampling = replace(sampling, top_k=limit)
        logits = _penalized(logits.astype(mx.float32), sampling, history, None)
        return _pick(logits, sampling, self.key, len(history))

    def walk(self, logits: mx.array, history: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """Like `choose`, through the processors, one row at a time, up to the first wrong draft.

        A processor is called once for every token that is emitted, with exactly the tokens before
        it: a rejected draft never reaches one.
        """
        tokens = list(history)
        chosen: list[int] = []
        for row, draft in zip(range(logits.shape[0]), [*drafts, None], strict=True):
            scores = logits[row].astype(mx.float32)
            for process in self.processors:
                scores = process(tokens, scores)
            token = int(self.choose(scores[None], tokens, mx.zeros([0], mx.int32)).item())
            chosen.append(token)
            if token != draft:
                break
            tokens.append(token)
        return chosen


def _pick(logits: mx.array, sampling: Sampling, key: Key, position: int) -> mx.array:
    """[L] int32 from float32 logits [L, V]; row j is for absolute position `position + j`."""
    if sampling.greedy:
        return mx.argmax(logits, axis=-1).astype(mx.int32)
    ids, scores = _candidates(logits, sampling)
    best = mx.argmax(scores + gumbel(key, position, ids), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0].astype(mx.int32)


def _candidates(logits: mx.array, sampling: Sampling) -> tuple[mx.array, mx.array]:
    """Token ids [L, K] and their tempered logits, -inf where a filter drops the token.

    Top-p, min-p and top-k each keep a prefix of the tokens ranked by untempered probability, so
    together they keep the shortest: mlx-lm's order gives the same set, and with top-k only K
    tokens need ranking.
    """
    rows, vocabulary = logits.shape
    tempered = 1.0 / sampling.temperature
    if sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        return mx.broadcast_to(mx.arange(vocabulary)[None], (rows, vocabulary)), logits * tempered
    ids = _ranked(logits, min(sampling.top_k or vocabulary, vocabulary))
    kept = mx.take_along_axis(logits, ids, axis=-1)
    logprobs = kept - mx.logsumexp(logits, axis=-1, keepdims=True)
    keep = mx.ones_like(kept, dtype=mx.bool_)
    if sampling.top_p < 1:
        likelier = mx.cumsum(mx.exp(logprobs), axis=-1, inclusive=False)
        keep = keep & (likelier < sampling.top_p)
    if sampling.min_p > 0:
        keep = keep & (logprobs >= logprobs[:, :1] + math.log(sampling.min_p))
    return ids, mx.where(keep, kept * tempered, -mx.inf)


def _ranked(logits: mx.array, count: int) -> mx.array:
    """Ids [L, count] of the largest logits, largest first."""
    if count == logits.shape[-1]:
        return mx.argsort(-logits, axis=-1)
    ids = mx.argpartition(-logits, kth=count - 1, axis=-1)[:, :count]
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _penalized(
    logits: mx.array, sampling: Sampling, history: Sequence[int], drafts: mx.array | None
) -> mx.array:
    """Logits [L, V] with bias and penalties, each row seeing the drafts before it.

    `drafts` None means that no row knows them. The formulas and their order are mlx-lm's.
    """
    if sampling.logit_bias:
        biased = mx.array(list(sampling.logit_bias), mx.int32)
        values = mx.array(list(sampling.logit_bias.values()), mx.float32)
        logits = logits.at[:, biased].add(values)
    if sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        recent, _ = _recent(history, drafts, sampling.repetition_context_size, logits.shape[0])
        old = mx.take_along_axis(logits, recent, axis=-1)
        new = mx.where(old < 0, old * penalty, old / penalty)
        logits = mx.put_along_axis(logits, recent, new, axis=-1)
    if sampling.presence_penalty != 0:
        recent, _ = _recent(history, drafts, sampling.presence_context_size, logits.shape[0])
        new = mx.take_along_axis(logits, recent, axis=-1) - sampling.presence_penalty
        logits = mx.put_along_axis(logits, recent, new, axis=-1)
    if sampling.frequency_penalty != 0:
        recent, real = _recent(history, drafts, sampling.frequency_context_size, logits.shape[0])
        same = (recent[:, :, None] == recent[:, None, :]) & real[:, None, :]
        count = same.sum(axis=-1).astype(mx.float32)
        new = mx.take_along_axis(logits, recent, axis=-1) - sampling.frequency_penalty * count
        logits = mx.put_along_axis(logits, recent, new, axis=-1)
    return logits


def _recent(
    history: Sequence[int], drafts: mx.array | None, size: int, rows: int
) -> tuple[mx.array, mx.array]:
    """The last `size` tokens before each row's choice: ids [rows, size], and which are real.

    Row j's history ends with draft j. Where it is shorter than `size`, its last token stands in
    again: writing one value to one place twice changes nothing, and `real` lets counts skip it.
    """
    tail = mx.array(list(history[-size:]), mx.int32)
    known = tail if drafts is None else mx.concatenate([tail, drafts.astype(mx.int32)])
    ends = mx.full((rows, 1), tail.size) if drafts is None else tail.size + mx.arange(rows)[:, None]
    index = ends - size + mx.arange(size)[None]
    real = index >= 0
    return known[mx.where(real, index, ends - 1)], real
