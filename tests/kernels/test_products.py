"""Products for OpenBLAS, against MLX's own."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.kernels import products
from dflash_mlx.kernels.products import (
    Columns,
    FusedHead,
    FusedTable,
    Narrowing,
    by_columns,
    can_join,
    narrows,
    times_columns,
)
from tests.kernels.arrays import normal


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
    monkeypatch.setattr(products, "_SMALL", small)
    called: list[int] = []
    plain = nn.Linear.__call__

    def watched(self: nn.Linear, x: mx.array) -> mx.array:
        called.append(x.shape[1])
        return plain(self, x)

    monkeypatch.setattr(nn.Linear, "__call__", watched)
    layer = nn.Linear(8, 6)
    layer.__class__ = Narrowing

    for rows in range(1, 20):
        layer(normal(1, rows, 8))

    assert called == list(range(turned + 1, 20))


def test_rows_that_are_not_few_are_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[int] = []
    pad = mx.pad

    def watched(x: mx.array, width: list[tuple[int, int]]) -> mx.array:
        padded.append(x.shape[0])
        return pad(x, width)

    monkeypatch.setattr(mx, "pad", watched)
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
