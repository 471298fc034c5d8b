"""Matrix products as OpenBLAS on a CPU computes them soonest, for one row and for a round's few.

OpenBLAS copies every weight into its own order before it multiplies, even for one row. Stored by
columns, weights are copied in half the time; layers that read the same rows are one product; and
the few rows of a round are multiplied as its kernels like them (docs/kernels.md has figures). Not
for `exact`: the bits of a row depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

_WHOLE = 16
"""Rows in which OpenBLAS's kernel for Zen works best: 16 are multiplied sooner than 4 to 15."""

_FROM = 4
HEAD_FROM = 3
"""Rows from which it pays to fill them up: in a layer, and in a head, which is wider."""

_FEW = 3
"""Rows, as columns of a product, up to which OpenBLAS's threads share the weights: its
SWITCH_RATIO gives a thread two rows or more, and then each thread needs all the weights."""

_SMALL = 1 << 21
"""Weights of a layer up to which that does not matter, as they stay in the caches."""


def by_columns(weight: mx.array) -> mx.array:
    """The same matrix `[N, K]`, evaluated, a view of its transpose."""
    columns = mx.contiguous(weight.T)
    mx.eval(columns)
    return columns.T


def times_columns(x: mx.array, matrix: mx.array, least: int = _FROM) -> mx.array:
    """x `[..., K]` times a `matrix` `[K, N]` stored in that order; `least` rows or more as 16."""
    count = math.prod(x.shape[:-1])
    if not least <= count < _WHOLE:
        return x @ matrix
    rows = mx.pad(x.reshape(count, -1), [(0, _WHOLE - count), (0, 0)])
    return (rows @ matrix)[:count].reshape(*x.shape[:-1], -1)


class FusedHead(nn.Linear):
    """An LM head whose weight is stored by columns."""

    def __call__(self, x: mx.array) -> mx.array:
        logits = times_columns(x, self.weight.T, HEAD_FROM)
        return logits + self.bias if "bias" in self else logits


class FusedTable(nn.Embedding):
    """An embedding table, stored by columns, that is the LM head too."""

    def as_linear(self, x: mx.array) -> mx.array:
        return times_columns(x, self.weight.T, HEAD_FROM)


class Narrowing(nn.Linear):
    """A linear layer with no more outputs than inputs, whose few rows are columns of its product.

    OpenBLAS multiplies a weight `[N, K]` by columns `[K, rows]` sooner than rows by the weight.
    """

    def __call__(self, x: mx.array) -> mx.array:
        count = math.prod(x.shape[:-1])
        if count > (_WHOLE if self.weight.size <= _SMALL else _FEW):
            return super().__call__(x)
        product = (self.weight @ x.reshape(count, -1).T).T.reshape(*x.shape[:-1], -1)
        return product + self.bias if "bias" in self else product


def narrows(layer: nn.Module) -> bool:
    """Whether `layer` is a plain float32 linear one that has no more outputs than inputs."""
    return can_join([layer]) and layer.weight.shape[0] <= layer.weight.shape[1]


class Columns:
    """x `[..., K]` -> `[..., N]`: the outputs of linear `layers` side by side, as one product.

    The layers' own weights become views of what is joined: nothing is in memory twice.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._matrix = by_columns(mx.concatenate([layer.weight for layer in layers])).T
        biases = [layer.bias for layer in layers if "bias" in layer]
        self._bias = mx.concatenate(biases) if biases else None
        begin = 0
        for layer in layers:
            end = begin + layer.weight.shape[0]
            layer.weight = self._matrix[:, begin:end].T
            mx.eval(layer.weight)
            begin = end

    def __call__(self, x: mx.array) -> mx.array:
        product = times_columns(x, self._matrix)
        return product if self._bias is None else product + self._bias


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Whether `layers` are plain float32 linear ones, with a bias all or none."""
    plain = all(type(layer) is nn.Linear and layer.weight.dtype == mx.float32 for layer in layers)
    return plain and len({"bias" in layer for layer in layers}) == 1
