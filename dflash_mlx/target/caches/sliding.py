"""Keys and values of a layer with a sliding window, in order of age.

mlx-lm keeps such rows in a ring that is written in place row by row and rebuilt whole by a pass of
several rows: once it has wrapped, what was overwritten is gone, and its `trim` corrupts it
(ml-explore/mlx-lm#1423). Here a row's place tells its position, so going back moves an offset, and
the order in which attention sums the rows is the same for every sequence of passes. When a buffer
is full, the rows that the next pass can see move to the front of a new one, once in `STEP` rows or
more.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import mlx.core as mx

STEP = 256
_LANES = 16
"""The first row given to attention is a multiple of this: masked rows ahead of a window then fall
into vector lanes of their own, and one row and k rows give the same bits on a CPU."""


class Buffer(NamedTuple):
    """Keys and values [B, H_kv, capacity, d]; row r stands at position `first + r`."""

    keys: mx.array
    values: mx.array
    first: int

    def rows(self, begin: int, end: int) -> tuple[mx.array, mx.array]:
        """Keys and values of the positions `begin` to `end - 1`."""
        place = slice(begin - self.first, end - self.first)
        return self.keys[..., place, :], self.values[..., place, :]


class SlidingCache:
    """The rows that a window of `max_size` sees (a query sees itself and `max_size` - 1 before).

    `offset` says where the rows end. Speaks mlx-lm's language: `offset`, `update_and_fetch`,
    `make_mask`.
    """

    free = False
    known = True
    step = STEP

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.buffer: Buffer | None = None
        self.offset = 0
        self._shown = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows [B, H_kv, L, d]; returns all rows that they may see, oldest first."""
        rows = keys.shape[2]
        buffer = self._reserve(rows, keys, values)
        place = slice(self.offset - buffer.first, self.offset - buffer.first + rows)
        buffer.keys[..., place, :] = keys
        buffer.values[..., place, :] = values
        self._shown = self._oldest(self.offset)
        self.offset += rows
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The rows that the last pass could see."""
        assert self.buffer is not None
        return self.buffer.rows(self._shown, self.offset)

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """Which of the rows that are fetched next each of `N` new rows sees: [N, rows], if any."""
        window = min(window_size or self.max_size, self.max_size)
        begin = self._oldest(self.offset)
        if begin + window >= self.offset + N and not return_array:
            return "causal" if N > 1 else None
        queries = mx.arange(self.offset, self.offset + N)[:, None]
        keys = mx.arange(begin, self.offset + N)[None]
        return (keys <= queries) & (queries < keys + window)

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The buffers, to be evaluated."""
        return self.buffer[:2] if self.buffer else ()

    @property
    def nbytes(self) -> int:
        """Bytes held, room for growth included."""
        return sum(array.nbytes for array in self.state)

    def empty(self) -> bool:
        """Whether it has never held a row."""
        return self.buffer is None

    def size(self) -> int:
        """How many rows a query sees."""
        return min(self.offset, self.max_size)

    @property
    def length(self) -> int:
        """How many rows it stands for, those that slid away included."""
        return self.offset

    def reaches(self, length: int) -> bool:
        """Lengths at which no row has been dropped that the window would need there."""
        first = self.buffer.first if self.buffer else 0
        return 0 <= length <= self.offset and self._oldest(length) >= first

    def rewind(self, length: int) -> None:
        """Forget the rows from `length` on."""
        if not self.reaches(length):
            raise ValueError(
                f"a window of {self.max_size} rows cannot be rewound from {self.offset} to {length}"
            )
        self.offset = length

    def save(self, lasting: bool) -> object:
        """The place of the rows, with a copy of those that are seen from here if it is to last."""
        if not lasting or self.buffer is None:
            return self.offset, None
        first = self._oldest(self.offset)
        keys, values = map(mx.contiguous, self.buffer.rows(first, self.offset))
        mx.eval(keys, values)
        return self.offset, Buffer(keys, values, first)

    def restore(self, saved: object) -> None:
        """Move back inside the buffer, or begin another with the rows that were copied."""
        offset, buffer = cast("tuple[int, Buffer | None]", saved)
        if buffer is None:
            self.rewind(offset)
            return
        self.offset = -1  # unfinished, it must not look right
        self.buffer = Buffer(mx.array(buffer.keys), mx.array(buffer.values), buffer.first)
        self.offset = offset

    def _oldest(self, position: int) -> int:
        """The position of the first row that is shown to a row at `position`."""
        return max(0, position - self.max_size + 1) // _LANES * _LANES

    def _reserve(self, rows: int, keys: mx.array, values: mx.array) -> Buffer:
        """The buffer with room for `rows` more rows, and all that the first of them sees."""
        first = self._oldest(self.offset)
        if self.buffer is None:
            self.buffer = Buffer(_grown(keys, rows, self.step), _grown(values, rows, self.step), 0)
        elif self.offset - self.buffer.first + rows > self.buffer.keys.shape[2]:
            keys, values = self.buffer.rows(first, self.offset)
            keys, values = (_grown(old, rows, self.step, old) for old in (keys, values))
            self.buffer = Buffer(keys, values, first)
        return self.buffer


def _grown(like: mx.array, rows: int, step: int, kept: mx.array | None = None) -> mx.array:
    """The `kept` rows [B, H, any, d] and room for `rows` more, with at least a step to spare."""
    length = 0 if kept is None else kept.shape[2]
    capacity = (-(-(length + rows) // step) + 1) * step
    room = mx.zeros((*like.shape[:2], capacity - length, like.shape[3]), like.dtype)
    return room if kept is None else mx.concatenate([kept, room], axis=2)
