"""What every kind of cache can do for a transaction."""

from __future__ import annotations

from typing import Protocol


class Kind(Protocol):
    """One layer's cache, as the engine sees it."""

    free: bool
    """Whether any earlier length can be reached, so that nothing need be saved to come back."""

    known: bool
    """Whether it can go back at all."""

    @property
    def length(self) -> int:
        """How many rows it stands for."""

    def reaches(self, length: int) -> bool:
        """Whether `rewind(length)` is possible."""

    def rewind(self, length: int) -> None:
        """Forget the rows from absolute position `length` on. Raises ValueError if it cannot."""

    def save(self, lasting: bool) -> object:
        """What `restore` needs to come back to now.

        Not `lasting`: good for one pass, and free of cost. `lasting`: good until the rows before
        this place are themselves rewound; a window's rows are copied for it.
        """

    def restore(self, saved: object) -> None:
        """Be what it was when `saved` was."""
