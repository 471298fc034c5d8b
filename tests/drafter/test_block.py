"""One pass over a block: who sees whom, and that the context is only read."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.drafter import DrafterConfig

from .tiny import by_definition, feed, rows, sliding_config, taps, tiny_config, tiny_drafter


@settings(max_examples=30)
@given(
    window=st.integers(2, 14),
    is_causal=st.sampled_from([None, False, True]),
    length=st.integers(1, 24),
    count=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 7), max_size=6),
)
def test_the_pass_is_the_definition_whatever_the_window(
    window: int, is_causal: bool | None, length: int, count: int, sizes: list[int]
) -> None:
    drafter = tiny_drafter(sliding_config(window, is_causal))
    context, block = taps(length, drafter.config), rows(count, 32, seed=2)
    ours = drafter.block(block, feed(drafter, context, sizes))
    assert mx.allclose(ours, by_definition(drafter, block, context), atol=1e-4)


@pytest.mark.parametrize(
    ("config", "looks_ahead"),
    [
        (tiny_config(), True),
        (sliding_config(window=30), True),
        (tiny_config(layer_types=("sliding_attention",) * 2, sliding_window=30), False),
        (tiny_config(is_causal=True), False),
    ],
    ids=["full", "sliding and full", "all sliding", "full but causal"],
)
def test_earlier_rows_see_later_ones_unless_the_block_is_causal(
    config: DrafterConfig, looks_ahead: bool
) -> None:
    """Report 31: a causal kernel where the block must be bidirectional."""
    drafter = tiny_drafter(config)
    cache = feed(drafter, taps(5, config), [])
    block = rows(6, 32, seed=2)
    disturbed = mx.array(block)
    disturbed[:, 4] += 1.0
    before, after = drafter.block(block, cache), drafter.block(disturbed, cache)
    changed = mx.any(mx.abs(before - after) > 1e-6, axis=(0, 2)).tolist()
    assert changed == [looks_ahead] * 4 + [True, True]


def test_a_shorter_block_is_not_the_beginning_of_a_longer_one() -> None:
    """Rows beyond are masks to look at, so block sizes are chosen, not cut out afterwards."""
    drafter = tiny_drafter()
    cache = feed(drafter, taps(5, drafter.config), [])
    block = rows(8, 32, seed=2)
    short, long = drafter.block(block[:, :4], cache), drafter.block(block, cache)
    assert not mx.allclose(short, long[:, :4], atol=1e-3)


@pytest.mark.parametrize("config", [tiny_config(), sliding_config()], ids=["full", "sliding"])
def test_a_block_leaves_no_trace(config: DrafterConfig) -> None:
    drafter = tiny_drafter(config)
    cache = feed(drafter, taps(9, config), [])
    before = [layer.rows(cache.length) for layer in cache.layers]
    first = drafter.block(rows(8, 32, seed=2), cache)
    mx.eval(first)
    drafter.block(rows(3, 32, seed=3), cache)
    again = drafter.block(rows(8, 32, seed=2), cache)
    assert cache.length == 9
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert mx.array_equal(layer.rows(9)[0], keys)
        assert mx.array_equal(layer.rows(9)[1], values)
    assert mx.array_equal(first, again)


def test_context_gives_keys_and_values_only_through_its_own_norm() -> None:
    """`input_layernorm` belongs to block rows; the context has passed `hidden_norm` once."""
    drafter = tiny_drafter()
    context = taps(5, drafter.config)
    before = feed(drafter, context, []).layers[0].rows(5)
    drafter.layers[0].input_layernorm.weight *= 3
    after = feed(drafter, context, []).layers[0].rows(5)
    drafter.hidden_norm.weight *= 3
    other = feed(drafter, context, []).layers[0].rows(5)
    assert mx.array_equal(before[1], after[1])
    assert mx.allclose(other[1], before[1] * 3, atol=1e-4)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_stays_half_and_close(dtype: mx.Dtype) -> None:
    drafter = tiny_drafter()
    context, block = taps(9, drafter.config), rows(8, 32, seed=2)
    exact = drafter.hidden_states(block, context, drafter.make_cache())
    drafter.set_dtype(dtype)
    cache = drafter.make_cache()
    half = drafter.hidden_states(block, context, cache)  # float32 inputs are not promoting
    assert half.dtype == dtype
    assert {array.dtype for array in cache.arrays} == {dtype}
    assert mx.allclose(half.astype(mx.float32), exact, atol=0.15)


def test_rows_of_the_wrong_width_are_named() -> None:
    drafter = tiny_drafter()
    cache = drafter.make_cache()
    with pytest.raises(ValueError, match=r"taps must be \[batch, rows, 64\]"):
        drafter.extend(rows(3, 32), cache)
    with pytest.raises(ValueError, match=r"embeddings must be \[batch, rows, 32\]"):
        drafter.block(rows(3, 64), cache)
    drafter.extend(taps(3, drafter.config), cache)
    with pytest.raises(ValueError, match="holds 1 sequences, not 2"):
        drafter.block(rows(3, 32, batch=2), cache)


def test_two_sequences_go_through_together() -> None:
    drafter = tiny_drafter()
    context, block = rows(6, 64, batch=2), rows(4, 32, seed=2, batch=2)
    both = drafter.hidden_states(block, context, drafter.make_cache())
    for i in range(2):
        alone = drafter.hidden_states(block[i : i + 1], context[i : i + 1], drafter.make_cache())
        assert mx.allclose(both[i : i + 1], alone, atol=1e-5)
