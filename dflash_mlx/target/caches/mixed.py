"""Several caches of one layer (mlx-lm's CacheList): they go back together."""

from __future__ import annotations

from collections.abc import Sequence

from .kind import Kind


class Mixed:
    """The parts of a CacheList."""

    def __init__(self, parts: Sequence[Kind]) -> None:
        self._parts = parts
        self.free = all(part.free for part in parts)
        self.known = all(part.known for part in parts)

    @property
    def length(self) -> int:
        """How many rows every part stands for."""
        return min(part.length for part in self._parts)

    def reaches(self, length: int) -> bool:
        """What all parts reach."""
        return all(part.reaches(length) for part in self._parts)

    def rewind(self, length: int) -> None:
        """Rewind every part."""
        for part in self._parts:
            part.rewind(length)

    def save(self, lasting: bool) -> object:
        """What every part saves."""
        return [part.save(lasting) for part in self._parts]

    def restore(self, saved: object) -> None:
        """Restore every part."""
        assert isinstance(saved, list)
        for part, of_part in zip(self._parts, saved, strict=True):
            part.restore(of_part)
