"""The one rule of choice: which token the target takes at a position.

The choice is a pure function of the logits, the tokens before it, the seed and the absolute
position. Greedy or sampled, alone or as a row of a block, it is the same function, so a draft is
right exactly when it equals the choice, and drafting changes speed only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from ..drafter.dflash2 import Pick
from ..target.draft_head import DraftHead
from .noise import Key, gumbel
from .options import Processor, Sampling

_DRAFT_CANDIDATES = 64
"""How many of its tokens a drafter ranks when sampling: they only guess, so fewer cost nothing."""

_FIRST_CANDIDATES = 256
"""How many tokens are ranked for top-p and min-p before all of them are."""

_GROUP = 64
"""Tokens of a group when ranking; vocabularies are padded to multiples of it."""


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
        if self.sampling.greedy:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        return _sample(logits, None, self.sampling, self.key, len(history))[0]

    def likely(
        self, logits: mx.array, history: Sequence[int], drafts: mx.array
    ) -> tuple[mx.array, mx.array]:
        """As `choose`, looking at each row's likeliest tokens only, and whether that was enough.

        Both are [L] int32; where the second is 1, the first is the choice. A whole vocabulary takes
        long to rank, and top-p and min-p seldom keep more than a few tokens of it.
        """
        if self.sampling.greedy or not self.sampling.cuts_tail:
            return self.choose(logits, history, drafts), mx.ones(logits.shape[0], mx.int32)
        logits = _penalized(logits.astype(mx.float32), self.sampling, history, drafts)
        return _sample(logits, None, self.sampling, self.key, len(history), _FIRST_CANDIDATES)

    def draft(
        self, logits: mx.array, history: Sequence[int], head: DraftHead | None = None
    ) -> mx.array:
        """A drafter's guesses, [n] int32, from its logits [n, V] for the positions after `history`.

        The target's own rule and noise, except that penalties cannot see the drafts of this block,
        and that only the likeliest tokens are looked at. Logits of a draft vocabulary [n, N] come
        with the `head` that made them, which knows whose they are.
        """
        logits = logits.astype(mx.float32)
        if head is not None and self.sampling.penalizes:
            logits, head = head.spread(logits), None
        logits = _penalized(logits, self.sampling, history, None)
        if self.sampling.greedy:
            best = mx.argmax(logits, axis=-1)
            return (best if head is None else head.ids[best]).astype(mx.int32)
        places = _largest(logits, min(_DRAFT_CANDIDATES, logits.shape[-1]))
        likeliest = mx.take_along_axis(logits, places, axis=-1)
        ids = places if head is None else head.ids[places]
        return _sample(likeliest, ids, self.sampling, self.key, len(history))[0]

    def draft_path(
        self,
        logits: mx.array,
        history: Sequence[int],
        follow: Callable[[mx.array, Pick], mx.array],
    ) -> mx.array:
        """Like `draft`, for a drafter whose guesses depend on one another (DFlash 2).

        `follow(logits, pick)` walks through the rows and calls `pick` for each, in order.
        """

        return follow(
            _penalized(logits.astype(mx.float32), self.sampling, history, None),
            self.picking(history),
        )

    @property
    def draft_candidates(self) -> int | None:
        """How many of a row's best tokens decide a draft; None where all of their logits do."""
        if self.sampling.penalizes:
            return None
        return 1 if self.sampling.greedy else _DRAFT_CANDIDATES

    def draft_among(self, ids: mx.array, logits: mx.array, history: Sequence[int]) -> mx.array:
        """As `draft`, from each row's best tokens `ids` [n, K] alone and their logits."""
        if self.sampling.greedy:
            return ids[:, 0]
        return _sample(logits, ids, self.sampling, self.key, len(history))[0]

    def picking(self, history: Sequence[int]) -> Pick:
        """How a walk (DFlash 2) picks among a row's candidates, for the tokens after `history`."""

        def pick(row: int, ids: mx.array, scores: mx.array) -> mx.array:
            if self.sampling.greedy:
                best = mx.argmax(scores, axis=-1, keepdims=True)
                return mx.take_along_axis(ids, best, axis=-1)[:, 0].astype(mx.int32)
            return _sample(scores, ids, self.sampling, self.key, len(history) + row)[0]

        return pick

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
            none = mx.zeros([0], mx.int32)
            choice, enough = self.likely(scores[None], tokens, none)
            token, known = cast("list[int]", mx.concatenate([choice, enough]).tolist())
            if not known:
                token = cast(int, self.choose(scores[None], tokens, none).item())
            chosen.append(token)
            if token != draft:
                break
            tokens.append(token)
        return chosen


def _sample(
    logits: mx.array,
    ids: mx.array | None,
    sampling: Sampling,
    key: Key,
    position: int,
    most: int | None = None,
) -> tuple[mx.array, mx.array]:
    """[L] int32 from float32 logits [L, K] of the tokens `ids` [L, K] (None: of all, in order).

    Row j is for absolute position `position + j`. Top-p, min-p and top-k each keep the first so
    many of the tokens ranked by untempered probability, so together they keep the fewest of the
    three: the set that mlx-lm's order keeps, and with top-k only K tokens need ranking. At `most`
    so many are ranked; the second result, [L] int32, is 1 where that was enough to know all that
    are kept.
    """
    scores = logits * (1.0 / sampling.temperature)
    enough = mx.ones(logits.shape[0], mx.int32)
    if sampling.top_k or sampling.cuts_tail:
        wanted = min(sampling.top_k or logits.shape[-1], logits.shape[-1])
        count = min(wanted, most or wanted)
        places = _ranked(logits, count)
        ranked = mx.take_along_axis(logits, places, axis=-1)
        keep = ranked >= ranked[:, :1] + (math.log(sampling.min_p) if sampling.min_p else -mx.inf)
        if sampling.top_p < 1:
            logprobs = ranked - mx.logsumexp(logits, axis=-1, keepdims=True)
            keep &= mx.cumsum(mx.exp(logprobs), axis=-1, inclusive=False) < sampling.top_p
        if count < wanted:
            # The least that is kept must beat the last that was ranked: others may equal that one.
            least = mx.where(keep, ranked, mx.inf).min(axis=-1)
            enough = (least > ranked[:, -1]).astype(mx.int32)
        scores = mx.where(keep, mx.take_along_axis(scores, places, axis=-1), -mx.inf)
        ids = places if ids is None else mx.take_along_axis(ids, places, axis=-1)
    elif ids is None:
        ids = mx.broadcast_to(mx.arange(logits.shape[-1])[None], logits.shape)
    best = mx.argmax(scores + gumbel(key, position, ids), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0].astype(mx.int32), enough


def _ranked(logits: mx.array, count: int) -> mx.array:
    """Ids [L, count] of the largest logits, largest first, and equal ones by id."""
    if count == logits.shape[-1]:
        return mx.argsort(-logits, axis=-1)
    ids = mx.sort(_largest(logits, count), axis=-1)
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _largest(logits: mx.array, count: int) -> mx.array:
    """Ids [L, count] of the largest logits [L, V], in any order.

    Partitioning a whole vocabulary is slow, its maximum is fast: the `count` largest logits lie in
    the `count` groups with the largest maxima, so only those are partitioned.
    """
    rows, vocabulary = logits.shape
    groups = vocabulary // _GROUP
    if vocabulary % _GROUP or groups <= count:
        return mx.argpartition(-logits, kth=count - 1, axis=-1)[:, :count]
    grouped = logits.reshape(rows, groups, _GROUP)
    best = mx.argpartition(-grouped.max(axis=-1), kth=count - 1, axis=-1)[:, :count]
    ids = (best[:, :, None] * _GROUP + mx.arange(_GROUP, dtype=best.dtype)).reshape(rows, -1)
    scores = mx.take_along_axis(logits, ids, axis=-1)
    chosen = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
    return mx.take_along_axis(ids, chosen, axis=-1)


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
