"""The drafter's memory of the context: keys and values at their absolute positions.

Rows lie in the order of their age, never in a ring, so a row's place always tells its position.
A layer with a sliding window keeps the rows that its next block can see; when its buffer is full
these move to the front of a new one, once in `STEP` rows or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from ..kernels.block_attention import block_attention
from ..kernels.metal import Metal

STEP = 256


class Buffer(NamedTuple):
    """Keys and values `[B, H_kv, capacity, d]`; row r stands at position `first + r`."""

    keys: mx.array
    values: mx.array
    first: int


class LayerCache:
    """The rows of one layer, in a buffer that only it holds.

    Writing happens in place as long as nobody else holds the arrays while they are evaluated.
    """

    def __init__(self, window: int | None = None, metal: Metal | None = None):
        self.window = window
        self.metal = metal
        self.buffer: Buffer | None = None

    def oldest_visible(self, position: int) -> int:
        """The position of the oldest row that a block starting at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def reserve(self, position: int, rows: int, like: mx.array) -> Buffer:
        """The buffer, with room for `rows` rows from `position` on.

        `like` `[B, H_kv, any, d]` gives shape and dtype. Rows before `position` that a block
        there can see are kept. Raises `ValueError` if the batch is not that of earlier rows.
        """
        buffer = self.buffer
        if buffer is None or position < buffer.first:  # empty, or begun again after rewind(0)
            buffer = Buffer(_blank(like, rows), _blank(like, rows), 0)
        elif like.shape[0] != buffer.keys.shape[0]:
            raise ValueError(
                f"The cache holds {buffer.keys.shape[0]} sequences, not {like.shape[0]}."
            )
        elif position - buffer.first + rows > buffer.keys.shape[2]:
            oldest = self.oldest_visible(position)
            kept = slice(oldest - buffer.first, position - buffer.first)
            buffer = Buffer(
                _moved(buffer.keys, kept, rows), _moved(buffer.values, kept, rows), oldest
            )
        self.buffer = buffer
        return buffer

    def write(self, position: int, keys: mx.array, values: mx.array) -> None:
        """Put rows `[B, H_kv, S, d]` at positions `position .. position + S - 1`."""
        buffer = self.reserve(position, keys.shape[2], like=keys)
        place = slice(position - buffer.first, position - buffer.first + keys.shape[2])
        buffer.keys[..., place, :] = keys
        buffer.values[..., place, :] = values

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        position: int,
        *,
        scale: float,
        window: int | None,
        causal: bool,
    ) -> mx.array:
        """Attention `[B, H, L, d]` of a block at `position` over the rows before it and its own.

        The block may lie behind the rows afterwards, where it counts for nothing.
        """
        context = self.reserve(position, keys.shape[2], like=keys)
        return block_attention(
            queries,
            context.keys,
            context.values,
            keys,
            values,
            length=position - context.first,
            scale=scale,
            window=window,
            causal=causal,
            first=context.first,
            metal=self.metal,
        )

    def rows(self, length: int) -> tuple[mx.array, mx.array]:
        """Copies of the keys and values that a block at `length` sees, oldest first."""
        if self.buffer is None:
            raise ValueError("The cache is empty.")
        keys, values, first = self.buffer
        place = slice(self.oldest_visible(length) - first, length - first)
        return mx.array(keys[..., place, :]), mx.array(values[..., place, :])

    def visible(self, length: int) -> Buffer | None:
        """Copies of the rows that a block at `length` sees, if they may slide away."""
        if self.window is None or self.buffer is None or length == 0:
            return None
        keys, values = map(mx.contiguous, self.rows(length))
        mx.eval(keys, values)
        return Buffer(keys, values, self.oldest_visible(length))


class DrafterCache:
    """The context of one conversation: `length` rows, the same in every layer.

    Only `length` says what counts: rows written behind it do not exist until it moves, so a
    block may be put there for a while, and an interrupted write leaves the cache as it was.
    """

    def __init__(self, windows: Sequence[int | None], metal: Metal | None = None):
        self.layers = [LayerCache(window, metal) for window in windows]
        self.length = 0

    def rewind(self, length: int) -> None:
        """Forget the rows from `length` on.

        Raises `ValueError` if `length` lies ahead, or so far back that a sliding layer has
        dropped rows which its window would need there (see `rewind_limit`; 0 is always possible).
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"Cannot rewind a context of {self.length} rows to {length}.")
        if 0 < length < self.rewind_limit:
            raise ValueError(
                f"Cannot rewind to {length} rows: a sliding window has moved on, so "
                f"{self.rewind_limit} is the least, or 0 to begin again."
            )
        self.length = length

    @property
    def rewinds_freely(self) -> bool:
        """Whether every earlier length can be reached: no layer slides."""
        return all(layer.window is None for layer in self.layers)

    def save(self) -> tuple[int, list[Buffer | None]]:
        """What `restore` needs to come back to now, as long as no earlier row is rewound.

        The rows that a sliding layer sees are copied; a full layer has them still.
        """
        return self.length, [layer.visible(self.length) for layer in self.layers]

    def restore(self, saved: tuple[int, list[Buffer | None]]) -> None:
        """Be as long as when `saved` was, with the same rows."""
        length, buffers = saved
        self.length = 0  # unfinished, it must not look right
        for layer, buffer in zip(self.layers, buffers, strict=True):
            if buffer is not None:
                layer.buffer = Buffer(mx.array(buffer.keys), mx.array(buffer.values), buffer.first)
        self.length = length

    @property
    def rewind_limit(self) -> int:
        """The smallest length, apart from 0, that `rewind` can reach."""
        return max(
            (
                layer.buffer.first + layer.window - 1
                for layer in self.layers
                if layer.window and layer.buffer and layer.buffer.first
            ),
            default=0,
        )

    @property
    def arrays(self) -> list[mx.array]:
        """All buffers, to be handed to `mx.eval`; not to be kept."""
        buffers = [layer.buffer for layer in self.layers if layer.buffer]
        return [array for buffer in buffers for array in (buffer.keys, buffer.values)]

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
