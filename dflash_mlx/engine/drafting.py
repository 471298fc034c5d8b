"""Where drafts come from: what the decode loop asks of a drafter in one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

import mlx.core as mx

from ..drafter.cache import Buffer, DrafterCache
from ..drafter.dflash2 import SecondDrafter
from ..drafter.model import Drafter
from ..target.draft_head import DraftHead, bare_weights
from ..target.model import Target
from .ranking import Ranking
from .sampling import Chooser

NOT_FINITE = -1
"""What every draft is when the drafter's values overflowed: no token, so never right."""

_WORTH_A_PASS = 32
"""Rows of taps from which on a pass over them costs little more than reading the weights."""


class Drafting(Protocol):
    """A source of drafts and the context that it keeps. Tests script it; `BlockDrafting` is it."""

    @property
    def length(self) -> int:
        """How many tokens its context stands for."""

    @property
    def arrays(self) -> list[mx.array]:
        """What must be evaluated once a round, lest the graph grow."""

    def rewind(self, length: int) -> None:
        """Forget the context from absolute position `length` on, or all of it if that cannot be."""

    @property
    def rewinds_freely(self) -> bool:
        """Whether every earlier length can be reached."""

    def reaches(self, length: int) -> bool:
        """Whether `rewind(length)` keeps that much."""

    def save(self) -> object:
        """What `restore` needs to come back to now, as long as no earlier row is rewound."""

    def restore(self, saved: object) -> None:
        """Be as when `saved` was."""

    def extend(self, taps: mx.array) -> None:
        """Append the target's taps [1, S, T*D] of the next S tokens to the context."""

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """`rows - 1` drafts, int32 and lazy, for the tokens after `history` (its last: the anchor).

        One row means no drafts, and no pass.
        """


def draft_head(target: Target, drafter: Drafter) -> DraftHead | None:
    """The head over the drafter's draft vocabulary: its own, else the target's rows; None: all."""
    ids = drafter.config.draft_vocab
    if ids is None:
        return None
    if drafter.config.own_head:
        weights = bare_weights(drafter.lm_head)
        return DraftHead(drafter.lm_head, ids, target.vocab_rows, weights)
    return target.head_rows(ids)


class _Waiting(NamedTuple):
    """Taps of the tokens up to position `end` that have not entered the context yet.

    Changed as a whole: an interrupt leaves the old or the new.
    """

    taps: tuple[mx.array, ...]
    end: int


_NONE = _Waiting((), 0)


class BlockDrafting:
    """A DFlash drafter at work: masked block in, drafts out, by one bidirectional pass.

    `head` draws drafts from a draft vocabulary, instead of all of the target's tokens.

    Taps wait until a draft needs them, or until there are so many that they are worth a pass of
    their own: while the target decodes plainly, or copies, the drafter costs nearly nothing, and
    it has the whole context when it is asked again.
    """

    def __init__(self, target: Target, drafter: Drafter, head: DraftHead | None = None) -> None:
        self._target = target
        self._drafter = drafter
        self._head = head
        self._cache = drafter.make_cache()
        self._ranking = Ranking(target, drafter, head)
        self._waiting = _NONE

    @property
    def length(self) -> int:
        """How many tokens its context stands for."""
        return max(self._cache.length, self._waiting.end)

    @property
    def arrays(self) -> list[mx.array]:
        """The drafter's K/V buffers, and the taps that wait."""
        return [*self._cache.arrays, *self._waiting.taps]

    def rewind(self, length: int) -> None:
        """Forget the context from `length` on; all of it where a sliding window has moved on."""
        cache = self.context()
        self._waiting = _NONE
        cache.rewind(length if length >= cache.rewind_limit else 0)

    @property
    def rewinds_freely(self) -> bool:
        """Whether every earlier length can be reached: no layer slides."""
        return self._cache.rewinds_freely

    def reaches(self, length: int) -> bool:
        """Whether `rewind(length)` keeps that much."""
        cache = self.context()
        return length == 0 or cache.rewind_limit <= length <= cache.length

    def save(self) -> object:
        """What `restore` needs: a copy of the rows that may slide away."""
        return self.context().save()

    def restore(self, saved: object) -> None:
        """Be as when `saved` was."""
        self._waiting = _NONE
        self._cache.restore(cast("tuple[int, list[Buffer | None]]", saved))

    def extend(self, taps: mx.array) -> None:
        """Append the target's taps [1, S, T*D] of the next S tokens to the context."""
        end = self.length + taps.shape[1]
        self._waiting = _Waiting((*self._waiting.taps, taps), end)
        if end - self._cache.length >= _WORTH_A_PASS:
            self.context()

    def context(self) -> DrafterCache:
        """The drafter's cache, with all taps in it."""
        waiting, cache = self._waiting, self._cache
        if rows := max(0, waiting.end - cache.length):
            taps = waiting.taps[0] if len(waiting.taps) == 1 else mx.concatenate([*waiting.taps], 1)
            self._drafter.extend(taps[:, taps.shape[1] - rows :], cache)
        self._waiting = _NONE
        return cache

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """`rows - 1` drafts: row k of `[anchor, MASK, ...]` predicts the token at anchor + k.

        In drafters that draft from the anchor on, row k - 1 does, and the block is a row shorter.
        """
        if rows == 1:
            return mx.zeros([0], mx.int32)
        config = self._drafter.config
        first = config.first_row
        block = mx.array([[history[-1]] + [config.mask_token_id] * (rows - 2 + first)])
        embeddings = self._target.embed(block) * config.embedding_scale
        hidden = self._drafter.block(embeddings, self.context())
        drafts = self._drafts(hidden[0, first:], history, chooser)
        return mx.where(mx.isfinite(hidden).all(), drafts, NOT_FINITE)

    def _drafts(self, hidden: mx.array, history: Sequence[int], chooser: Chooser) -> mx.array:
        """A draft for each row [n, D], by its logits or, where a kernel can, by its best tokens."""
        drafter, anchor = self._drafter, history[-1]
        second = drafter.candidate_selector if isinstance(drafter, SecondDrafter) else None
        count = chooser.draft_candidates
        ranked = self._ranking.best(hidden, second.top_k if second and count else count)
        if ranked is not None and second is not None:
            picking = chooser.picking(history)
            return second.walk_among(hidden, anchor, ranked.ids, ranked.scores, picking)
        if ranked is not None:
            return chooser.draft_among(ranked.ids, ranked.scores, history)
        logits = drafter.logits(hidden, self._head.logits if self._head else self._target.head)
        if second is not None:
            scores = self._head.spread(logits) if self._head else logits
            return chooser.draft_path(scores, history, partial(second.walk, hidden, anchor))
        return chooser.draft(logits, history, self._head)
