"""What a recurrent layer carries along: a convolution's window, a recurrence's state.

Such arrays are rebound by every pass and never written in place, so a reference is a snapshot.
Only the newest state exists: to go back inside a round is to restore the state before it and to
run the layer again over the rows that stay (see `replay`).
"""

from __future__ import annotations

from typing import Any, cast

from mlx_lm.models.cache import ArraysCache


class StateCache(ArraysCache):
    """mlx-lm's ArraysCache, which also counts its rows; `offset` moves when the layer advances."""

    free = False
    known = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.offset = 0

    def advance(self, N: int) -> None:
        """Called by the layer after a pass over `N` rows."""
        super().advance(N)
        self.offset += N

    @property
    def length(self) -> int:
        """How many rows it stands for."""
        return self.offset

    def reaches(self, length: int) -> bool:
        """No length but its own."""
        return length == self.offset

    def rewind(self, length: int) -> None:
        """Stay as it is."""
        if length != self.offset:
            raise ValueError(f"a state after {self.offset} rows cannot be rewound to {length}")

    def save(self, lasting: bool) -> object:
        """References to the arrays."""
        return self.offset, list(self.cache)

    def restore(self, saved: object) -> None:
        """Bind the arrays again. The offset goes first: unfinished, it must not look right."""
        offset, arrays = cast("tuple[int, list[Any]]", saved)
        self.offset = -1
        self.cache = list(arrays)
        self.offset = offset
