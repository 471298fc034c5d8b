"""Where drafts come from: what the decode loop asks of a drafter in one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import mlx.core as mx

from ..drafter.dflash2 import SecondDrafter
from ..drafter.model import Drafter
from ..target.model import Target
from .sampling import Chooser


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

    def extend(self, taps: mx.array) -> None:
        """Append the target's taps [1, S, T*D] of the next S tokens to the context."""

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """`rows - 1` drafts, int32 and lazy, for the tokens after `history` (its last: the anchor).

        One row means no drafts, and no pass.
        """


class BlockDrafting:
    """A DFlash drafter at work: masked block in, drafts out, by one bidirectional pass."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
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

    def extend(self, taps: mx.array) -> None:
        """Append the target's taps [1, S, T*D] of the next S tokens to the context."""
        self._drafter.extend(taps, self._cache)

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """`rows - 1` drafts: row k of `[anchor, MASK, ...]` predicts the token at anchor + k."""
        if rows == 1:
            return mx.zeros([0], mx.int32)
        config = self._drafter.config
        block = mx.array([[history[-1]] + [config.mask_token_id] * (rows - 1)])
        embeddings = self._target.embed(block) * config.embedding_scale
        hidden = self._drafter.block(embeddings, self._cache)
        logits = self._drafter.logits(hidden[:, 1:], self._target.head)
        if isinstance(self._drafter, SecondDrafter):
            walk = partial(self._drafter.candidate_selector.walk, hidden[0, 1:], history[-1])
            return chooser.draft_path(logits[0], history, walk)
        return chooser.draft(logits[0], history)
