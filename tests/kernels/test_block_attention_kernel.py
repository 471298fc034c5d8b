"""The attention kernel: its formula in float64, bits that rows cannot change, bytes read once."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import MODELS, Simulator

from dflash_mlx.kernels.block_attention import HEAD_DIMS, Parts, block_attention, row_tiles
from dflash_mlx.kernels.metal import Metal

from .oracle import close, same_bits, wide

pytestmark = pytest.mark.simulator


def parts(
    dtype: mx.Dtype,
    dims: int,
    length: int,
    rows: int,
    heads: tuple[int, int] = (2, 1),
    batch: int = 1,
) -> Parts:
    """Random arrays; what lies behind the context is NaN."""
    mx.random.seed(length * 32 + rows)
    queries, kv = (batch, heads[0], rows, dims), (batch, heads[1], rows, dims)
    context = mx.random.normal((2, batch, heads[1], length, dims))
    spare = mx.full((2, batch, heads[1], rows + 3, dims), mx.nan)
    buffers = mx.concatenate([context, spare], axis=3)
    arrays = [mx.random.normal(queries), *buffers, mx.random.normal(kv), mx.random.normal(kv)]
    return Parts(*(array.astype(dtype) for array in arrays))


def by_formula(
    p: Parts, length: int, window: int | None, causal: bool, sinks: mx.array | None
) -> np.ndarray:
    queries, keys, values, block_keys, block_values = (np.nan_to_num(wide(part)) for part in p)
    group = queries.shape[1] // keys.shape[1]
    whole_keys = np.concatenate([keys[:, :, :length], block_keys], axis=2).repeat(group, 1)
    whole_values = np.concatenate([values[:, :, :length], block_values], axis=2).repeat(group, 1)
    scores = queries @ whole_keys.swapaxes(2, 3) * queries.shape[-1] ** -0.5
    rows, count = scores.shape[2:]
    ahead = np.arange(count)[None] - (length + np.arange(rows)[:, None])
    seen = (ahead > -(window or count)) & (ahead < (1 if causal else window or count))
    scores = np.where(seen, scores, -np.inf)
    drain = np.zeros(scores.shape[1]) if sinks is None else wide(sinks)
    top = np.maximum(scores.max(-1, keepdims=True), drain[None, :, None, None])
    weights = np.exp(scores - top)
    drained = 0 if sinks is None else np.exp(drain[None, :, None, None] - top)
    return weights @ whole_values / (weights.sum(-1, keepdims=True) + drained)


def check(metal: Metal, p: Parts, length: int, **choices: Any) -> None:
    first = choices.pop("first", 0)
    got = block_attention(
        *p, length=length, scale=p.queries.shape[-1] ** -0.5, first=first, metal=metal, **choices
    )
    choices = {"window": None, "causal": False, "sinks": None, **choices}
    assert close(got, by_formula(p, length, **choices))


@pytest.mark.parametrize(
    ("dtype", "dims", "heads", "rows", "length"),
    [
        (mx.float32, 8, (8, 2), 16, 33),
        (mx.bfloat16, 16, (4, 2), 8, 50),
        (mx.float16, 32, (2, 2), 3, 520),
        (mx.float16, 64, (16, 1), 5, 40),
        (mx.bfloat16, 80, (6, 2), 7, 9),
        (mx.float32, 96, (3, 3), 8, 31),
        (mx.bfloat16, 128, (8, 2), 16, 70),
        (mx.bfloat16, 256, (4, 1), 3, 33),
        (mx.float32, 256, (1, 1), 1, 0),
    ],
)
def test_every_head_dim_and_type_is_near_float64(
    dtype: mx.Dtype, dims: int, heads: tuple[int, int], rows: int, length: int, metal: Metal
) -> None:
    check(metal, parts(dtype, dims, length, rows, heads, batch=2), length, causal=rows % 2 == 0)


@settings(max_examples=25)
@given(
    length=st.sampled_from([0, 1, 7, 8, 31, 32, 33, 63, 65, 100]),
    rows=st.sampled_from([1, 2, 7, 8, 9, 16, 32]),
    window=st.none() | st.sampled_from([2, 7, 8, 33, 64]),
    causal=st.booleans(),
    sinks=st.none() | st.floats(-2, 4),
    first=st.sampled_from([0, 1, 31, 32, 511]),
)
def test_masks_sinks_and_seams_are_the_formula(
    length: int,
    rows: int,
    window: int | None,
    causal: bool,
    sinks: float | None,
    first: int,
    metal: Metal,
) -> None:
    drains = None if sinks is None else mx.array([sinks, -sinks])
    choices: dict[str, Any] = {"window": window, "causal": causal, "sinks": drains, "first": first}
    check(metal, parts(mx.float32, 64, length, rows), length, **choices)


def test_sinks_of_eight_heads_and_more(metal: Metal) -> None:
    """MLX passes fewer than 8 of them in another address space."""
    for length in (20, 600):
        sinks = mx.linspace(-2, 3, 8)
        check(metal, parts(mx.float32, 64, length, 2, (8, 4)), length, sinks=sinks)


@pytest.mark.parametrize("length", [507, 508, 509, 1023, 1100])
def test_splits_are_combined(length: int, metal: Metal) -> None:
    check(metal, parts(mx.float32, 64, length, 4), length, sinks=mx.array([0.5, -1]))
    check(metal, parts(mx.float32, 64, length, 4), length, window=100, causal=True)


@pytest.mark.parametrize("model", MODELS)
def test_a_position_has_the_same_bits_alone_and_in_a_block(
    model: str, metals: dict[str, Metal]
) -> None:
    """Before, at and behind the end of a split, under every model of arithmetic."""
    rows, length, scale = 6, 508, 0.125
    p = parts(mx.bfloat16, 64, length, rows)
    call: dict[str, Any] = {"scale": scale, "causal": True, "metal": metals[model]}
    whole = block_attention(*p, length=length, **call)
    p.keys[..., length : length + rows, :] = p.block_keys
    p.values[..., length : length + rows, :] = p.block_values
    for row in range(rows):
        one = slice(row, row + 1)
        alone = block_attention(
            p.queries[..., one, :],
            p.keys,
            p.values,
            p.block_keys[..., one, :],
            p.block_values[..., one, :],
            length=length + row,
            **call,
        )
        assert same_bits(alone, whole[..., one, :])


def test_a_buffer_that_has_moved_gives_the_same_bits(metal: Metal) -> None:
    """A sliding layer drops rows: with `first`, tiles stay where they were."""
    p, length, dropped = parts(mx.bfloat16, 64, 100, 4), 100, 50
    call: dict[str, Any] = {"scale": 0.125, "causal": True, "window": 20, "metal": metal}
    whole = block_attention(*p, length=length, **call)
    moved = p._replace(keys=p.keys[:, :, dropped:], values=p.values[:, :, dropped:])
    assert same_bits(block_attention(*moved, length=length - dropped, first=dropped, **call), whole)


def test_rows_that_no_query_sees_are_not_read(metal: Metal, simulator: Simulator) -> None:
    p = parts(mx.float32, 64, 200, 4)
    p.keys[:, :, :150] = mx.nan
    p.values[:, :, :150] = mx.nan
    with simulator.counting() as counts:
        check(metal, p, 200, window=51)
    assert counts.buffers["context_keys"].read_bytes == 50 * 64 * 4


@pytest.mark.parametrize(("heads", "rows", "times"), [((4, 1), 16, 1), ((16, 1), 16, 2)])
def test_keys_and_values_are_read_once_for_all_rows_and_heads(
    heads: tuple[int, int], rows: int, times: int, metal: Metal, simulator: Simulator
) -> None:
    """ceil(L G d / 16,384) times: once for Qwen3-8B's shape at 16 rows."""
    length, dims = 64, 128
    with simulator.counting() as counts:
        p = parts(mx.bfloat16, dims, length, rows, heads)
        block_attention(*p, length=length, scale=dims**-0.5, metal=metal)
    assert times == -(-rows * heads[0] * dims // 16384)
    for name, keys in {"context": length, "block": rows}.items():
        assert counts.buffers[f"{name}_keys"].read_bytes == times * keys * dims * 2
        assert counts.buffers[f"{name}_values"].read_bytes == times * keys * dims * 2
    products = (length + rows + 31) // 32 * 32 // 8 * (rows * heads[0] // 8) * (dims // 8) * 2
    assert counts.matrix_operations == products
    assert counts.launches == 1


def test_rows_are_spread_so_that_keys_are_read_as_seldom_as_registers_allow() -> None:
    for dims in (dims for dims in HEAD_DIMS if dims >= 64):
        for total in range(1, 513):
            tiles, simdgroups, groups = row_tiles(total, dims)
            assert tiles * 8 * simdgroups * groups >= total
            assert groups <= -(-total * dims // 16384)


def test_what_the_kernel_cannot_take_runs_as_the_twin() -> None:
    metal = Metal()
    p = parts(mx.float32, 40, 3, 2)
    expected = by_formula(p, 3, None, False, None)
    assert close(block_attention(*p, length=3, scale=40**-0.5, metal=metal), expected)
    assert metal.ran == {"block_attention: twin, head dim 40": 1}
