"""The target's caches, each able to go back: one kind a file.

A model of mlx-lm makes its own list of caches. Those that cannot go back are exchanged for ours,
which the model cannot tell from its own (`adapted`); `kind` then gives any of them one face.
"""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from ...errors import UsageError
from .kind import Kind
from .mixed import Mixed
from .offset import Offset
from .opaque import Opaque
from .sliding import SlidingCache
from .state import StateCache

__all__ = ["Kind", "Mixed", "Offset", "Opaque", "SlidingCache", "StateCache", "adapted", "kind"]


def adapted(entry: Any, kv_bits: int | None = None, group_size: int = 64) -> Any:
    """An empty cache of mlx-lm, or ours in its place; with `kv_bits`, keys and values quantized.

    `group_size` values share a scale.

    Raises UsageError where the model has a window and `kv_bits` are asked for.
    """
    if type(entry) is CacheList:
        entry.caches = tuple(adapted(part, kv_bits, group_size) for part in entry.caches)
        return entry
    if type(entry) is ArraysCache and entry.left_padding is None:
        return StateCache(len(entry.cache))
    if type(entry) is RotatingKVCache and entry.keep == 0:
        if kv_bits:
            raise UsageError(
                "This model has layers with a sliding window, whose cache cannot be quantized:"
                " leave --kv-bits away."
            )
        return SlidingCache(entry.max_size)
    if type(entry) is KVCache and kv_bits:
        return QuantizedKVCache(group_size, kv_bits)
    return entry


def kind(entry: Any) -> Kind:
    """The cache as one that goes back; `Opaque` where it is of a kind that we do not know."""
    if isinstance(entry, SlidingCache | StateCache):
        return entry
    if type(entry) in (KVCache, QuantizedKVCache):
        return Offset(entry)
    if type(entry) is CacheList:
        return Mixed([kind(part) for part in entry.caches])
    return Opaque(entry)
