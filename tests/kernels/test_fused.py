"""The ops for a CPU with OpenBLAS, against MLX's own."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.kernels.fused import Causal, Turns, grouped_attention, rms_norm, swiglu
from tests.kernels.arrays import normal


def test_swiglu_is_that_of_the_formula_far_from_nought_too() -> None:
    gate, up = mx.linspace(-120, 120, 481), normal(481)

    ours = swiglu(gate, up)

    assert mx.allclose(ours, nn.silu(gate) * up, rtol=1e-5, atol=1e-7).item()


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("rows", [1, 5])
def test_grouped_attention_is_mlxs(heads: int, rows: int) -> None:
    queries = normal(2, heads, rows, 16)
    keys, values = normal(2, 2, 40, 16, seed=1), normal(2, 2, 40, 16, seed=2)

    ours = grouped_attention(queries * 9, keys, values, 0.25, Causal()(rows, 40))

    expected = mx.fast.scaled_dot_product_attention(
        queries * 9, keys, values, scale=0.25, mask="causal" if rows > 1 else None
    )
    assert ours.shape == expected.shape
    assert mx.allclose(ours, expected, atol=1e-5).item()


def test_a_query_without_a_mask_sees_every_key() -> None:
    queries, keys, values = normal(1, 2, 3, 8), normal(1, 1, 6, 8), normal(1, 1, 6, 8)

    ours = grouped_attention(queries, keys, values, 0.3)

    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3)
    assert mx.allclose(ours, expected, atol=1e-5).item()


def test_rows_see_what_is_before_them_and_themselves() -> None:
    causal = Causal()

    seen = causal(2, 4)

    assert seen is not None
    assert seen.tolist() == [[True, True, True, False], [True] * 4]
    assert causal(2, 4) is seen, "all layers of a pass share it"
    assert causal(2, 3).tolist() == [[True, True, False], [True] * 3]  # type: ignore[union-attr]
    assert causal(1, 4) is None


def test_rows_are_normed_as_mlx_norms_them() -> None:
    x, weight = 30 * normal(1, 3, 16), normal(16, seed=1)

    ours = rms_norm(x, weight, 1e-5)

    assert mx.allclose(ours, mx.fast.rms_norm(x, weight, 1e-5), atol=1e-5).item()


def test_heads_are_turned_as_mlxs_rope_turns_them() -> None:
    """One place after another, several rows, and the same place again."""
    dims, base = 16, 1e4
    turns = Turns(np.array(base ** (-mx.arange(0, dims, 2) / dims)))
    for rows, position in ((5, 0), (5, 7), (1, 7), (1, 4000), (5, 7)):
        x = normal(2, 3, rows, dims, seed=rows + position)

        ours = turns(x, position)

        expected = mx.fast.rope(x, dims, traditional=False, base=base, scale=1.0, offset=position)
        assert mx.allclose(ours, expected, atol=1e-3).item()
