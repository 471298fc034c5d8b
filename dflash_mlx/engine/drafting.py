"""Where drafts come from: what the decode loop asks of a drafter in one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

import mlx.core as mx

from ..drafter.cache import Buffer
from ..drafter.dflash2 import SecondDrafter
from ..drafter.model import Drafter
from ..target.draft_head import DraftHead
from ..target.model import Target
from .sampling import Chooser

NOT_FINITE = -1
"""What every draft is when the drafter's values overflowed: no token, so never right."""


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
        return DraftHead(drafter.lm_head, ids, target.vocab_rows)
    return target.head_rows(ids)


class BlockDrafting:
    """A DFlash drafter at work: masked block in, drafts out, by one bidirectional pass.

    `head` draws drafts from a draft vocabulary, instead of all of the target's tokens.
    """

    def __init__(self, target: Target, drafter: Drafter, head: DraftHead | None = None) -> None:
        self._target = target
        self._drafter = drafter
        self._head = head
        self._cache = drafter.make_cache()

    @property
    def length(self) -> int:
        """How many tokens its context stands for."""
        return self._cache.length

    @property
    def arrays(self) -> list[mx.array]:
        """The drafter's K/V buffers."""
        return self._cache.arrays

    def rewind(self, length: int) -> None:
        """Forget the context from `length` on; all of it where a sliding window has moved on."""
        self._cache.rewind(length if length >= self._cache.rewind_limit else 0)

    @property
    def rewinds_freely(self) -> bool:
        """Whether every earlier length can be reached: no layer slides."""
        return self._cache.rewinds_freely

    def reaches(self, length: int) -> bool:
        """Whether `rewind(length)` keeps that much."""
        return length == 0 or self._cache.rewind_limit <= length <= self._cache.length

    def save(self) -> object:
        """What `restore` needs: a copy of the rows that may slide away."""
        return self._cache.save()

    def restore(self, saved: object) -> None:
        """Be as when `saved` was."""
        self._cache.restore(cast("tuple[int, list[Buffer | None]]", saved))

    def extend(self, taps: mx.array) -> None:
        """Append the target's taps [1, S, T*D] of the next S tokens to the context."""
        self._drafter.extend(taps, self._cache)

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
        hidden = self._drafter.block(embeddings, self._cache)
        head = self._head.logits if self._head else self._target.head
        logits = self._drafter.logits(hidden[:, first:], head)[0]
        if isinstance(self._drafter, SecondDrafter):
            walk = partial(self._drafter.candidate_selector.walk, hidden[0, first:], history[-1])
            scores = self._head.spread(logits) if self._head else logits
            drafts = chooser.draft_path(scores, history, walk)
        else:
            drafts = chooser.draft(logits, history, self._head)
        return mx.where(mx.isfinite(hidden).all(), drafts, NOT_FINITE)
