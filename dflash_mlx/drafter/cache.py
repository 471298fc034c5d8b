"""The drafter's memory of the context: keys and values at their absolute positions.

Rows lie in the order of their age, never in a ring, so a row's place always tells its position.
A layer with a sliding window keeps the rows that its next block can see; when its buffer is full
these move to the front of a new one, once in `STEP` rows or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

STEP = 256


class LayerCache:
    """Keys and values `[B, H_kv, capacity, d]` of one layer, in buffers that only it holds.

    Row `r` stands at absolute position `first + r`. Writing happens in place as long as nobody
    else holds the arrays while they are evaluated.
    """

    def __init__(self, window: int | None = None):
        self.window = window
        self.first = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def oldest_visible(self, position: int) -> int:
        """The position of the oldest row that a block starting at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def reserve(self, position: int, rows: int, like: mx.array) -> tuple[mx.array, mx.array]:
        """The two buffers, with room for `rows` rows from `position` on.

        `like` `[B, H_kv, any, d]` gives shape and dtype. Rows before `position` that a block
        there can see are kept; where they are moved, `first` changes.
        """
        if self.keys is None or self.values is None:
            self.keys, self.values = _blank(like, rows), _blank(like, rows)
        elif position - self.first + rows > self.keys.shape[2]:
            oldest = max(self.first, self.oldest_visible(position))
            kept = slice(oldest - self.first, position - self.first)
            self.keys, self.values, self.first = (
                _moved(self.keys, kept, rows),
                _moved(self.values, kept, rows),
                oldest,
            )
        return self.keys, self.values

    def write(self, position: int, keys: mx.array, values: mx.array) -> None:
        """Put rows `[B, H_kv, S, d]` at positions `position .. position + S - 1`."""
        own_keys, own_values = self.reserve(position, keys.shape[2], like=keys)
        place = slice(position - self.first, position - self.first + keys.shape[2])
        own_keys[..., place, :] = keys
        own_values[..., place, :] = values

    def rows(self, length: int) -> tuple[mx.array, mx.array]:
        """The keys and values that a block at `length` sees, oldest first: copies, for tests."""
        if self.keys is None or self.values is None:
            raise ValueError("The cache is empty.")
        start, stop = self.oldest_visible(length) - self.first, length - self.first
        return mx.array(self.keys[..., start:stop, :]), mx.array(self.values[..., start:stop, :])


class DrafterCache:
    """The context of one conversation: `length` rows, the same in every layer.

    Only `length` says what counts: rows written behind it do not exist until it moves, so a
    block may be put there for a while, and an interrupted write leaves the cache as it was.
    """

    def __init__(self, windows: Sequence[int | None]):
        self.layers = [LayerCache(window) for window in windows]
        self.length = 0

    def rewind(self, length: int) -> None:
        """Forget the rows from `length` on.

        Raises `ValueError` if `length` lies ahead, or so far back that a sliding layer has
        dropped rows which its window would need there (see `rewind_limit`; 0 is always possible).
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"Cannot rewind a cache of {self.length} rows to {length}.")
        if length == 0:
            for layer in self.layers:
                layer.first = 0
        elif length < self.rewind_limit:
            raise ValueError(
                f"Cannot rewind to {length}: a sliding window has moved on, and rows are kept for "
                f"{self.rewind_limit} or more (or start again from 0)."
            )
        self.length = length

    @property
    def rewind_limit(self) -> int:
        """The smallest length, apart from 0, that `rewind` can reach."""
        limits = [
            layer.first + layer.window - 1
            for layer in self.layers
            if layer.window and layer.first > 0
        ]
        return min(max(limits, default=0), self.length)

    @property
    def arrays(self) -> list[mx.array]:
        """All buffers, to be handed to `mx.eval`; not to be kept."""
        pairs = [array for layer in self.layers for array in (layer.keys, layer.values)]
        return [array for array in pairs if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for growth included."""
        return sum(array.nbytes for array in self.arrays)


def _capacity(rows: int) -> int:
    """A multiple of `STEP` with at least one `STEP` to spare, so that moves stay rare."""
    return (-(-rows // STEP) + 1) * STEP


def _blank(like: mx.array, rows: int) -> mx.array:
    batch, heads, _, dims = like.shape
    return mx.zeros((batch, heads, _capacity(rows), dims), like.dtype)


def _moved(old: mx.array, kept: slice, more: int) -> mx.array:
    """A new buffer that begins with the `kept` rows of `old` and has room for `more`."""
    rows = old[..., kept, :]
    room = _capacity(rows.shape[2] + more) - rows.shape[2]
    return mx.concatenate([rows, mx.zeros((*rows.shape[:2], room, rows.shape[3]), old.dtype)], 2)
