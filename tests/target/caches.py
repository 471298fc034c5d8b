"""What a list of caches holds, as arrays to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList

from dflash_mlx.target.caches import SlidingCache, StateCache
from dflash_mlx.target.model import Target


def contents(cache: Sequence[Any]) -> list[mx.array]:
    """Copies of all rows and states that count: what a next pass would see."""
    return [mx.array(array) for entry in cache for array in _of_entry(entry)]


def _of_entry(entry: Any) -> list[mx.array]:
    if isinstance(entry, CacheList):
        return contents(entry.caches)
    if isinstance(entry, StateCache):
        states: Any = entry.cache
        return [array for array in states if array is not None]
    if isinstance(entry, SlidingCache):
        oldest = max(0, entry.offset - entry.max_size + 1)
        return list(entry.buffer.rows(oldest, entry.offset)) if entry.buffer else []
    leaves: Any = tree_flatten((entry.keys, entry.values))
    return [array[..., : entry.offset, :] for _, array in leaves]


def fresh(target: Target, tokens: Sequence[int]) -> list[mx.array]:
    """The contents after a prefill of `tokens` alone."""
    cache = target.make_cache()
    append(target, cache, tokens)
    return contents(cache)


def append(
    target: Target, cache: list[Any], tokens: Sequence[int], keep: int | None = None
) -> None:
    """A round over `tokens` that keeps the first `keep` of them (None: all)."""
    with target.round(cache, len(tokens)) as turn:
        logits, _ = turn.forward(mx.array([list(tokens)]))
        mx.eval(logits)
        turn.commit(len(tokens) if keep is None else keep)
