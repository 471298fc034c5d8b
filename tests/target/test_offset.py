"""mlx-lm's cache of all positions, which goes back by its offset."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from dflash_mlx.target.caches import kind
from tests.tiny import same_bits


def rows(first: int, count: int) -> mx.array:
    """Keys, or values, that tell their positions: [1, 1, count, 2]."""
    return mx.broadcast_to(mx.arange(first, first + count)[:, None], (1, 1, count, 2)).astype(
        mx.float32
    )


def filled(count: int) -> KVCache:
    """A cache of `count` rows, which makes room for four at a time."""
    cache = KVCache()
    cache.step = 4
    cache.update_and_fetch(rows(0, count), rows(100, count))
    return cache


@pytest.mark.parametrize("length", [0, 1, 4, 6])
def test_rows_written_after_going_back_follow_those_that_stay(length: int) -> None:
    cache = filled(6)

    kind(cache).rewind(length)
    keys, values = cache.update_and_fetch(rows(length, 5), rows(100 + length, 5))

    assert kind(cache).length == length + 5
    assert same_bits([keys, values], [rows(0, length + 5), rows(100, length + 5)])


@pytest.mark.parametrize("length", [-1, 7])
def test_rows_that_are_not_there_cannot_be_gone_back_to(length: int) -> None:
    """Report 17: mlx-lm's own trim takes a negative count and invents rows."""
    cache = filled(6)

    assert not kind(cache).reaches(length)
    with pytest.raises(ValueError, match=f"cannot rewind a cache of 6 rows to {length}"):
        kind(cache).rewind(length)
    assert cache.offset == 6


@pytest.mark.parametrize("before", [3, 4])
@pytest.mark.parametrize("grown", [2, 9], ids=["keys cut", "keys grown"])
def test_an_interrupt_while_keys_grow_before_values_is_mended(before: int, grown: int) -> None:
    """Else the next pass would find room for its keys and none for its values."""
    cache = filled(before)
    saved = kind(cache).save(lasting=False)
    assert cache.keys is not None
    cache.keys = mx.concatenate([cache.keys[..., :before, :], mx.zeros((1, 1, grown - 2, 2))], 2)

    kind(cache).restore(saved)
    keys, values = cache.update_and_fetch(rows(before, 5), rows(100 + before, 5))

    assert same_bits([keys, values], [rows(0, before + 5), rows(100, before + 5)])
