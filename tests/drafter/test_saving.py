"""A drafter's context, saved and come back to: the rows that a window has let go are copied."""

from __future__ import annotations

import mlx.core as mx
import pytest

from dflash_mlx.drafter.cache import DrafterCache

WINDOWS = [5, None]


def filled(rows: int) -> DrafterCache:
    """A cache of a sliding and a full layer whose rows hold their own positions."""
    cache = DrafterCache(WINDOWS)
    extend(cache, rows)
    return cache


def extend(cache: DrafterCache, rows: int) -> None:
    """Append rows [1, 1, rows, 2]."""
    positions = mx.arange(cache.length, cache.length + rows).reshape(1, 1, rows, 1)
    block = mx.broadcast_to(positions, (1, 1, rows, 2)).astype(mx.float32)
    for layer in cache.layers:
        layer.write(cache.length, block, -block)
    cache.length += rows


def seen(cache: DrafterCache) -> list[list[float]]:
    """What each layer's next block sees."""
    return [layer.rows(cache.length)[0][0, 0, :, 0].tolist() for layer in cache.layers]  # type: ignore[misc]


@pytest.mark.parametrize("more", [1, 300, 900])
def test_it_comes_back_however_far_it_went(more: int) -> None:
    cache = filled(20)
    saved = cache.save()
    for _ in range(more // 100 + 1):
        extend(cache, min(more, 100))

    for _ in range(2):  # what was saved is not written to
        cache.restore(saved)

        assert cache.length == 20
        assert seen(cache) == [[16, 17, 18, 19], list(range(20))]
        extend(cache, 3)
        assert seen(cache) == [[19, 20, 21, 22], list(range(23))]


def test_an_empty_one_comes_back_empty() -> None:
    cache = DrafterCache(WINDOWS)
    saved = cache.save()
    extend(cache, 2)

    cache.restore(saved)

    assert cache.length == 0


def test_only_full_layers_rewind_freely() -> None:
    assert not DrafterCache(WINDOWS).rewinds_freely
    assert DrafterCache([None, None]).rewinds_freely
