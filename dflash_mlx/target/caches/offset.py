"""Keys and values of all positions, full or quantized: going back moves an offset.

The buffers are written in place, so a held reference would cost a copy and be no snapshot. Rows
are quantized one by one when they are written, so their bits depend on no round.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


class Offset:
    """mlx-lm's KVCache or QuantizedKVCache."""

    free = True
    known = True

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    @property
    def length(self) -> int:
        """How many rows it stands for."""
        return int(self._entry.offset)

    def reaches(self, length: int) -> bool:
        """Any earlier length."""
        return 0 <= length <= self.length

    def rewind(self, length: int) -> None:
        """Forget the rows from `length` on; trimming by a negative count would invent some."""
        if not self.reaches(length):
            raise ValueError(f"cannot rewind a cache of {self.length} rows to {length}")
        self._entry.trim(self.length - length)

    def save(self, lasting: bool) -> object:
        """The length."""
        return self.length

    def restore(self, saved: object) -> None:
        """Move back to the saved length.

        mlx-lm's KVCache grows its keys before its values; an interrupt in between would leave keys
        that promise room which the values have not, so both are cut to the rows that count.
        """
        assert isinstance(saved, int)
        self.rewind(saved)
        entry = self._entry
        if type(self._entry) is KVCache and _capacity(entry.keys) != _capacity(entry.values):
            entry.keys, entry.values = entry.keys[..., :saved, :], entry.values[..., :saved, :]


def _capacity(buffer: mx.array | None) -> int:
    return 0 if buffer is None else int(buffer.shape[2])
