"""Attention over a context and a block: equal to its formula, blind to whatever lies unused."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.kernels.block_attention import block_attention

HEADS, KV_HEADS, DIMS = 4, 2, 8


def arrays(length: int, rows: int, spare: int = 0) -> list[mx.array]:
    """Queries, the two buffers (NaN behind the context), and the block's keys and values."""
    random = np.random.default_rng(length * 100 + rows)

    def normal(heads: int, count: int) -> np.ndarray:
        return random.standard_normal((1, heads, count, DIMS)).astype(np.float32)

    buffers = [normal(KV_HEADS, length + rows + spare) for _ in range(2)]
    for buffer in buffers:
        buffer[:, :, length:] = np.nan
    parts = [normal(HEADS, rows), *buffers, normal(KV_HEADS, rows), normal(KV_HEADS, rows)]
    return [mx.array(part) for part in parts]


def by_formula(parts: list[mx.array], length: int, window: int | None, causal: bool) -> np.ndarray:
    """One query, one key at a time."""
    queries, keys, values, block_keys, block_values = (np.array(part[0]) for part in parts)
    keys = np.concatenate([keys[:, :length], block_keys], axis=1)
    values = np.concatenate([values[:, :length], block_values], axis=1)
    out = np.zeros_like(queries)
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        for i in range(queries.shape[1]):
            seen = [
                k
                for k in range(keys.shape[1])
                if (window is None or abs(length + i - k) < window)
                and (k < length or not causal or k <= length + i)
            ]
            scores = np.array([queries[head, i] @ keys[group, k] for k in seen]) / math.sqrt(DIMS)
            weights = np.exp(scores - scores.max())
            out[head, i] = weights @ values[group, seen] / weights.sum()
    return out


@settings(max_examples=40)
@given(
    length=st.integers(0, 20),
    rows=st.integers(1, 9),
    spare=st.integers(0, 3),
    window=st.none() | st.integers(2, 12),
    causal=st.booleans(),
)
def test_it_is_its_formula(
    length: int, rows: int, spare: int, window: int | None, causal: bool
) -> None:
    parts = arrays(length, rows, spare)
    expected = by_formula(parts, length, window, causal)
    ours = block_attention(*parts, length=length, scale=DIMS**-0.5, window=window, causal=causal)
    assert np.allclose(np.array(ours[0]), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_keeps_its_type_and_sums_in_float32(dtype: mx.Dtype) -> None:
    parts = [part.astype(dtype) for part in arrays(300, 8)]
    exact = [part.astype(mx.float32) for part in parts]
    half = block_attention(*parts, length=300, scale=DIMS**-0.5)
    full = block_attention(*exact, length=300, scale=DIMS**-0.5)
    assert half.dtype == dtype
    assert mx.allclose(half.astype(mx.float32), full, atol=1e-2)


def test_the_context_is_not_changed() -> None:
    parts = arrays(10, 4)
    before = mx.array(parts[1][..., :10, :])
    mx.eval(block_attention(*parts, length=10, scale=1.0))
    assert mx.array_equal(parts[1][..., :10, :], before)
