"""Rollback of the target's caches as a transaction.

A round feeds a block of rows and keeps the first few of them:

    with target.round(cache, rows) as turn:
        logits, taps = turn.forward(block)
        turn.commit(kept)   # keep that many of its rows

Leaving the block without a commit, by an exception or Ctrl-C, restores what was before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .caches import kind
from .watch import Notes

if TYPE_CHECKING:
    from .model import Target


def reaches(cache: Sequence[Any], length: int) -> bool:
    """Whether all caches can go back to their first `length` rows."""
    return all(kind(entry).reaches(length) for entry in cache)


def rewind(cache: Sequence[Any], length: int) -> None:
    """Forget all rows from absolute position `length` on. Raises ValueError where it cannot be."""
    for entry in cache:
        kind(entry).rewind(length)


def rewinds_freely(cache: Sequence[Any]) -> bool:
    """Whether any earlier length can be reached, with no `save` for it."""
    return all(kind(entry).free for entry in cache)


def save(cache: Sequence[Any]) -> list[object] | None:
    """What it takes to come back here later, as long as no earlier row is rewound.

    None where a cache is of an unknown kind: then there is no coming back.
    """
    kinds = [kind(entry) for entry in cache]
    return [each.save(lasting=True) for each in kinds] if all(k.known for k in kinds) else None


def restore(cache: Sequence[Any], saved: Sequence[object]) -> None:
    """Come back to where `saved` was saved."""
    for entry, of_entry in zip(cache, saved, strict=True):
        kind(entry).restore(of_entry)


class Round:
    """One pass of `rows` rows over the target's caches, to be kept in part; see above."""

    def __init__(self, target: Target, cache: Sequence[Any], rows: int) -> None:
        self._target = target
        self._entries = list(cache)
        self._kinds = [kind(entry) for entry in cache]
        self._rows = rows
        self._before = [each.save(lasting=False) for each in self._kinds]
        self._starts = [each.length for each in self._kinds]
        self._notes: Notes = {}
        self._committed = False

    def __enter__(self) -> Round:
        return self

    def forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """As `Target.forward`, noting what it takes to keep only some of the rows."""
        if self._rows == 1:
            return self._target.forward(tokens, self._entries)
        logits, taps, self._notes = self._target.noted_forward(tokens, self._entries)
        return logits, taps

    def commit(self, rows: int) -> None:
        """Keep the first `rows` rows of the block and forget the rest."""
        if not 0 < rows <= self._rows:
            raise ValueError(f"cannot keep {rows} rows of {self._rows}")
        if rows < self._rows:
            self._keep(rows)
        self._notes = {}
        self._committed = True

    def _keep(self, rows: int) -> None:
        again = []
        parts = zip(self._entries, self._kinds, self._starts, self._before, strict=True)
        for entry, each, start, before in parts:
            if each.reaches(start + rows):
                each.rewind(start + rows)
            else:
                each.restore(before)
                again.append(entry)
        if again:
            self._target.replay.run(self._notes, again, rows)
            if not all(
                each.reaches(start + rows)
                for each, start in zip(self._kinds, self._starts, strict=True)
            ):
                raise RuntimeError("a recurrent layer does not say how many rows it has seen")

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error_type is not None or not self._committed:
            for each, before in zip(self._kinds, self._before, strict=True):
                each.restore(before)
