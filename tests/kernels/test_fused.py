"""The ops for a CPU with OpenBLAS, against MLX's own."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.kernels import fused
from dflash_mlx.kernels.fused import (
    Causal,
    Columns,
    FusedHead,
    FusedTable,
    Narrowing,
    Turns,
    by_columns,
    can_join,
    grouped_attention,
    narrows,
    rms_norm,
    swiglu,
    times_columns,
)


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def test_by_columns_is_the_same_matrix_in_another_order() -> None:
    weight = normal(6, 4)

    stored = by_columns(weight)

    assert mx.array_equal(stored, weight).item()
    assert np.array(stored, copy=False).strides == (4, 24)


@pytest.mark.parametrize("bias", [False, True])
def test_joined_layers_give_their_outputs_side_by_side(bias: bool) -> None:
    layers = [nn.Linear(8, width, bias=bias) for width in (5, 3, 4)]
    x = normal(2, 3, 8)
    apart = mx.concatenate([layer(x) for layer in layers], axis=-1)
    weights = [mx.array(layer.weight) for layer in layers]

    joined = Columns(layers)

    assert mx.allclose(joined(x), apart, atol=1e-6).item()
    for layer, weight in zip(layers, weights, strict=True):
        assert mx.array_equal(layer.weight, weight).item()
        assert np.array(layer.weight, copy=False).strides == (4, 4 * 12), "a view of what is joined"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 15, 16, 17])
@pytest.mark.parametrize("bias", [False, True])
def test_any_number_of_rows_is_multiplied(rows: int, bias: bool) -> None:
    x = normal(2, rows, 8)
    narrow, wide = nn.Linear(8, 6, bias=bias), nn.Linear(8, 20, bias=bias)
    table = nn.Embedding(20, 8)
    expected = narrow(x), wide(x), table.as_linear(x)
    assert narrows(narrow)
    assert not narrows(wide)

    narrow.__class__, wide.__class__, table.__class__ = Narrowing, FusedHead, FusedTable
    wide.weight, table.weight = by_columns(wide.weight), by_columns(table.weight)

    for ours, theirs in zip((narrow(x), wide(x), table.as_linear(x)), expected, strict=True):
        assert ours.shape == theirs.shape
        assert mx.allclose(ours, theirs, atol=1e-6).item()


@pytest.mark.parametrize(("small", "turned"), [(1 << 21, 16), (0, 3)])
def test_rows_are_columns_while_they_are_few(
    monkeypatch: pytest.MonkeyPatch, small: int, turned: int
) -> None:
    monkeypatch.setattr(fused, "_SMALL", small)
    called: list[int] = []
    plain = nn.Linear.__call__
    monkeypatch.setattr(
        nn.Linear, "__call__", lambda self, x: (called.append(x.shape[1]), plain(self, x))[1]
    )
    layer = nn.Linear(8, 6)
    layer.__class__ = Narrowing

    for rows in range(1, 20):
        layer(normal(1, rows, 8))

    assert called == list(range(turned + 1, 20))


def test_rows_that_are_not_few_are_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[int] = []
    pad = mx.pad
    monkeypatch.setattr(mx, "pad", lambda x, width: (padded.append(x.shape[0]), pad(x, width))[1])
    matrix = normal(8, 20)

    for rows in range(1, 20):
        times_columns(normal(1, rows, 8), matrix)

    assert padded == list(range(4, 16))


def test_only_plain_float32_layers_are_joined() -> None:
    plain, biased = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)
    half = nn.Linear(64, 64, bias=False)
    half.weight = half.weight.astype(mx.bfloat16)

    assert can_join([plain, plain])
    assert can_join([biased, biased])
    assert not can_join([plain, biased])
    assert not can_join([plain, half])
    assert not can_join([plain, nn.QuantizedLinear(64, 64, bias=False)])


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
