"""Rollback of the target's caches as a transaction.

A round feeds a block of rows and keeps the first few of them:

    with Round(cache) as turn:
        ...                 # forward the block
        turn.commit(kept)   # keep that many of its rows

Leaving the block in any other way, by an exception or Ctrl-C, restores what was before it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from mlx_lm.models.cache import KVCache


def refusal(cache: list[Any]) -> str | None:
    """Why these caches cannot be rolled back, as a clause for a sentence; None if they can."""
    kinds = sorted({type(entry).__name__ for entry in cache if type(entry) is not KVCache})
    if kinds:
        return f"its {' and '.join(kinds)} cannot be rolled back yet"
    return None


def cached_length(cache: list[Any]) -> int:
    """How many rows every entry holds for certain (an interrupt can leave entries uneven)."""
    return min(entry.offset for entry in cache)


def rewind(cache: list[Any], length: int) -> None:
    """Forget all rows from absolute position `length` on.

    KV buffers are written in place, so moving the offset is all that it takes. Raises ValueError
    where fewer rows are held than asked for: trimming by a negative count would invent rows.
    """
    for entry in cache:
        surplus = entry.offset - length
        if length < 0 or surplus < 0:
            raise ValueError(f"cannot rewind a cache of {entry.offset} rows to {length}")
        if entry.trim(surplus) != surplus:
            raise ValueError(f"{type(entry).__name__} kept rows that it was told to forget")


class Round:
    """One round's transaction over the target's caches; see the module's example."""

    def __init__(self, cache: list[Any]) -> None:
        self._cache = cache
        self._start = cached_length(cache)
        self._kept = 0

    def __enter__(self) -> Round:
        return self

    def commit(self, rows: int) -> None:
        """Keep the first `rows` rows of the block; the rest are forgotten on leaving."""
        self._kept = rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        rewind(self._cache, self._start + (0 if kind else self._kept))
