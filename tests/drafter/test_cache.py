"""The context: the same whatever way it came, rewound at will, and never copied in a round."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.drafter import Drafter, DrafterCache, DrafterConfig
from dflash_mlx.drafter.cache import STEP

from .tiny import by_definition, feed, rows, sliding_config, taps, tiny_config, tiny_drafter

CONFIGS = [tiny_config(), sliding_config(window=12)]


def same_rows(cache: DrafterCache, other: DrafterCache) -> bool:
    """Whether two caches hold the same bits, as far as a next block can see."""
    return cache.length == other.length and all(
        bool(mx.array_equal(ours, theirs))
        for mine, others in zip(cache.layers, other.layers, strict=True)
        for ours, theirs in zip(mine.rows(cache.length), others.rows(other.length), strict=True)
    )


@pytest.mark.parametrize("config", CONFIGS, ids=["full", "sliding"])
@settings(max_examples=15)
@given(sizes=st.lists(st.integers(1, 20), max_size=8))
def test_the_first_block_is_the_same_for_any_chunking_of_the_prompt(
    config: DrafterConfig, sizes: list[int]
) -> None:
    """Report 29: prompts longer than a chunk gave the drafter only the last one."""
    drafter = tiny_drafter(config)
    context, block = taps(40, config), rows(8, 32, seed=2)
    whole, pieces = feed(drafter, context, []), feed(drafter, context, sizes)
    assert same_rows(pieces, whole)
    assert mx.array_equal(drafter.block(block, pieces), drafter.block(block, whole))


@pytest.mark.parametrize("config", CONFIGS, ids=["full", "sliding"])
def test_after_every_round_the_cache_is_a_fresh_one(config: DrafterConfig) -> None:
    """Rounds of every accepted count, 0 included, over growth and over a moved window."""
    drafter = tiny_drafter(config)
    block = rows(8, 32, seed=2)
    context = taps(960 + 9 * 40, config)
    cache = feed(drafter, context[:, :960], [100] * 9)
    for round_ in range(40):
        new = context[:, cache.length : cache.length + 1 + round_ % 8]
        hidden = drafter.hidden_states(block, new, cache)
        mx.eval(hidden, cache.arrays)
        fresh = feed(drafter, context[:, : cache.length], [])
        assert same_rows(cache, fresh)
        assert mx.array_equal(hidden, drafter.block(block, fresh))
    assert cache.length > 4 * STEP
    if config.sliding_window:
        assert cache.rewind_limit > 960  # the window did move, behind a block


def test_a_sliding_layer_holds_its_window_and_little_more() -> None:
    drafter = tiny_drafter(sliding_config(window=12))
    cache = drafter.make_cache()
    for seed in range(100):
        drafter.extend(taps(16, drafter.config, seed), cache)
        mx.eval(cache.arrays)
    sliding, full = (layer.buffer for layer in cache.layers)
    assert sliding is not None
    assert full is not None
    assert sliding.keys.shape[2] <= 12 + 2 * STEP
    assert full.keys.shape[2] >= 1600


@pytest.mark.parametrize("config", CONFIGS, ids=["full", "sliding"])
@pytest.mark.parametrize("length", [0, 1, 7, 39, 40])
def test_rewound_and_used_again_equals_fresh(config: DrafterConfig, length: int) -> None:
    """Report 16: the drafter's counters survived a request."""
    drafter = tiny_drafter(config)
    old, new = taps(40, config), taps(30, config, seed=9)
    cache = feed(drafter, old, [11])
    drafter.block(rows(8, 32), cache)
    cache.rewind(length)
    assert cache.length == length
    drafter.extend(new, cache)
    fresh = feed(drafter, mx.concatenate([old[:, :length], new], axis=1), [])
    assert same_rows(cache, fresh)


def moved_window() -> tuple[Drafter, DrafterCache, mx.array]:
    drafter = tiny_drafter(sliding_config(window=12))
    context = taps(700, drafter.config)
    return drafter, feed(drafter, context, [20] * 35), context


def test_rewinding_reaches_as_far_back_as_the_rows_that_are_kept() -> None:
    drafter, cache, context = moved_window()
    limit = cache.rewind_limit
    assert 0 < limit < 700
    cache.rewind(limit)
    block = rows(8, 32, seed=2)
    expected = by_definition(drafter, block, context[:, :limit])
    assert mx.allclose(drafter.block(block, cache), expected, atol=1e-4)


def test_rewinding_beyond_the_window_is_an_error_and_changes_nothing() -> None:
    _, cache, _ = moved_window()
    with pytest.raises(ValueError, match="a sliding window has moved on"):
        cache.rewind(cache.rewind_limit - 1)
    assert cache.length == 700


def test_a_moved_window_can_begin_again_from_nothing() -> None:
    drafter, cache, _ = moved_window()
    cache.rewind(0)
    new = taps(30, drafter.config, seed=9)
    drafter.extend(new, cache)
    fresh, block = feed(drafter, new, []), rows(8, 32, seed=2)
    assert same_rows(cache, fresh)
    assert mx.array_equal(drafter.block(block, cache), drafter.block(block, fresh))


@pytest.mark.parametrize("length", [-1, 41])
def test_rewinding_goes_backwards_only(length: int) -> None:
    drafter = tiny_drafter()
    cache = feed(drafter, taps(40, drafter.config), [])
    with pytest.raises(ValueError, match="Cannot rewind a context of 40 rows"):
        cache.rewind(length)


@pytest.mark.parametrize("config", CONFIGS, ids=["full", "sliding"])
def test_an_interrupted_extend_leaves_the_context_as_it_was(
    config: DrafterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = tiny_drafter(config)
    context = taps(700, config)
    cache = feed(drafter, context[:, :500], [16] * 31)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache.layers[1], "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            drafter.extend(taps(300, config, seed=9), cache)
    assert cache.length == 500
    drafter.extend(context[:, 500:], cache)
    assert same_rows(cache, feed(drafter, context, []))


def test_a_round_copies_no_cache() -> None:
    """Writing behind the context in place: a round's memory does not grow with the cache."""
    config = tiny_config(num_heads=8, num_kv_heads=8, head_dim=64)
    drafter = tiny_drafter(config)
    cache = feed(drafter, taps(6000, config), [])
    taps_, block = taps(4, config), rows(8, 32)
    mx.eval(taps_, block, drafter.hidden_states(block, taps_, cache), cache.arrays)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(drafter.hidden_states(block, taps_, cache), cache.arrays)
    assert cache.nbytes > 40e6
    assert mx.get_peak_memory() - before < cache.nbytes / 10


def test_a_cache_is_as_large_as_it_says() -> None:
    drafter = tiny_drafter()
    cache = drafter.make_cache()
    assert cache.nbytes == 0
    assert cache.arrays == []
    drafter.extend(taps(1, drafter.config), cache)
    assert cache.nbytes == sum(array.nbytes for array in cache.arrays)
    assert cache.nbytes == 2 * 2 * 2 * (2 * STEP) * 8 * 4  # layers, K and V, heads, rows, dims
