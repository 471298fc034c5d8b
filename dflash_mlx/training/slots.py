"""Many conversations decoded side by side, each in its slot of one preallocated cache.

A conversation that ends gives its slot to the next one at once, so that every pass of the target
has all rows busy. Rows lie from index 0 in each slot: nothing is padded, joined or moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from ..errors import DFlashError
from ..target.model import Target

_STEP = 128
"""Buffers grow by so many tokens."""

_CHUNK = 256


class SlotCache:
    """Keys and values of one layer, `[slots, H_kv, capacity, d]`, as mlx-lm's models use a cache.

    `table` knows how long each slot is; a pass adds one row to every slot.
    """

    def __init__(self, table: Slots):
        self._table = table
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """The position of each slot's next row [slots]."""
        return self._table.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write one row `[slots, H_kv, 1, d]` a slot; all rows up to the longest slot's."""
        reach = self._table.reach
        self.reserve(reach, keys, values)
        assert self.keys is not None
        assert self.values is not None
        place = mx.arange(keys.shape[0])
        self.keys[place, :, self.offset] = keys[:, :, 0]
        self.values[place, :, self.offset] = values[:, :, 0]
        return self.keys[..., :reach, :], self.values[..., :reach, :]

    def make_mask(
        self, rows: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Which rows each slot sees, its new one included: bool `[slots, 1, 1, reach]`."""
        assert rows == 1
        places, last = mx.arange(self._table.reach), self.offset[:, None]
        seen = places <= last
        if window_size is not None:
            seen = seen & (places > last - window_size)
        return seen[:, None, None]

    def reserve(self, reach: int, keys: mx.array, values: mx.array) -> None:
        """Make room for `reach` rows; `keys` and `values` give shapes and type."""
        if self.keys is None or self.values is None:
            slots = len(self._table)
            self.keys = mx.zeros((slots, keys.shape[1], 0, keys.shape[3]), keys.dtype)
            self.values = mx.zeros((slots, values.shape[1], 0, values.shape[3]), values.dtype)
        if reach > self.keys.shape[2]:
            self.keys, self.values = _grown(self.keys, reach), _grown(self.values, reach)

    def put(self, slot: int, keys: mx.array, values: mx.array) -> None:
        """Fill a slot with rows `[1, H_kv, n, d]` from its beginning."""
        self.reserve(keys.shape[2], keys, values)
        assert self.keys is not None
        assert self.values is not None
        self.keys[slot, :, : keys.shape[2]] = keys[0]
        self.values[slot, :, : keys.shape[2]] = values[0]

    def keep(self, slots: mx.array) -> None:
        """Drop all slots but these."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[slots], self.values[slots]


class Slots:
    """A target with `count` slots. Raises DFlashError where it has other caches than K/V."""

    def __init__(self, target: Target, count: int):
        made = make_prompt_cache(target.model)
        kinds = {type(entry) for entry in made}
        if other := sorted(kind.__name__ for kind in kinds - {KVCache, RotatingKVCache}):
            raise DFlashError(
                f"`train prepare` cannot batch this target yet (its caches: {', '.join(other)}):"
                " bring conversations as JSONL of ids and assistant."
            )
        self._target = target
        self._lengths = [0] * count
        self._caches = [SlotCache(self) for _ in made]
        self._prefilled = [KVCache() for _ in made]
        self._said: list[int] = []  # the prompt that `_prefilled` holds
        self.offsets = mx.zeros(count, mx.int32)
        self.reach = 1

    def __len__(self) -> int:
        return len(self._lengths)

    def begin(self, slot: int, tokens: Sequence[int]) -> None:
        """Let a slot hold `tokens` (perhaps none) and forget what it held.

        What the prompt before began with alike, such as instructions, is not forwarded again.
        """
        alike, most = 0, min(len(self._said), len(tokens))
        while alike < most and self._said[alike] == tokens[alike]:
            alike += 1
        for entry in self._prefilled:
            entry.trim(entry.offset - alike)
        for start in range(alike, len(tokens), _CHUNK):
            rows = mx.array([list(tokens[start : start + _CHUNK])])
            self._target.forward(rows, cast("list[Any]", self._prefilled))
            mx.eval([entry.state for entry in self._prefilled])
        self._said = list(tokens)
        for held, own in zip(self._prefilled, self._caches, strict=True):
            if tokens and held.keys is not None and held.values is not None:
                own.put(slot, held.keys[..., : len(tokens), :], held.values[..., : len(tokens), :])
        self._lengths[slot] = len(tokens)
        mx.eval([array for own in self._caches for array in (own.keys, own.values)])

    def step(self, tokens: Sequence[int]) -> mx.array:
        """One pass, a token a slot; logits `[slots, V]` of what follows."""
        self.offsets = mx.array(self._lengths, mx.int32)
        self.reach = max(self._lengths) + 1
        caches: list[Any] = list(self._caches)
        logits, _ = self._target.forward(mx.array(list(tokens))[:, None], caches)
        last = logits[:, -1]
        mx.eval(last, [(own.keys, own.values) for own in self._caches])
        self._lengths = [length + 1 for length in self._lengths]
        return last

    def keep(self, slots: Sequence[int]) -> None:
        """Go on with these slots alone."""
        for own in self._caches:
            own.keep(mx.array(list(slots), mx.int32))
        self._lengths = [self._lengths[slot] for slot in slots]


def _grown(buffer: mx.array, reach: int) -> mx.array:
    more = -(-reach // _STEP) * _STEP - buffer.shape[2]
    blank = mx.zeros((*buffer.shape[:2], more, buffer.shape[3]), buffer.dtype)
    return mx.concatenate([buffer, blank], axis=2)
