"""A cache of a kind that we do not know: it serves plain decoding and cannot go back."""

from __future__ import annotations

from typing import Any


class Opaque:
    """Any other cache. A conversation on it begins again with every turn."""

    free = False
    known = False

    def __init__(self, entry: Any) -> None:
        self.name = type(entry).__name__

    @property
    def length(self) -> int:
        """Unknown."""
        return 0

    def reaches(self, length: int) -> bool:
        """None."""
        return False

    def rewind(self, length: int) -> None:
        """Never."""
        raise ValueError(f"a {self.name} cannot be rewound")

    def save(self, lasting: bool) -> object:
        """Nothing."""
        return None

    def restore(self, saved: object) -> None:
        """Nothing to be done: since it reaches no length, it is thrown away before the next use."""
