"""Ops for a CPU with OpenBLAS: fewer and larger products, and weights stored as it reads them fast.

On such a machine a pass of a small model spends most of its time outside arithmetic: OpenBLAS
copies every weight into its own order before it multiplies, and MLX runs each small op by itself.
Stored by columns, weights are copied in half the time; layers that read the same rows are one
product; a product's rows are as many as OpenBLAS multiplies best; query heads that share keys are
rows of one product. Not for `exact`: sums are in another order than MLX's own, as OpenBLAS's are
anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

_LOG2_E = math.log2(math.e)
"""MLX's exponential takes 25 ns an element on x86, its power 9: so e^x is here 2^(x log2 e)."""

_LOWEST = float(np.finfo(np.float32).min)

_WHOLE = 16
"""Rows in which OpenBLAS's kernels for x86 work best: 16 are multiplied sooner than 4 to 15."""

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


def times_columns(x: mx.array, matrix: mx.array, least: int = 4) -> mx.array:
    """x `[..., K]` times a `matrix` `[K, N]` stored in that order; `least` rows or more as 16."""
    count = math.prod(x.shape[:-1])
    if not least <= count < _WHOLE:
        return x @ matrix
    rows = mx.pad(x.reshape(count, -1), [(0, _WHOLE - count), (0, 0)])
    return (rows @ matrix)[:count].reshape(*x.shape[:-1], -1)


class FusedHead(nn.Linear):
    """An LM head whose weight is stored by columns."""

    def __call__(self, x: mx.array) -> mx.array:
        logits = times_columns(x, self.weight.T, 3)
        return logits + self.bias if "bias" in self else logits


class FusedTable(nn.Embedding):
    """An embedding table, stored by columns, that is the LM head too."""

    def as_linear(self, x: mx.array) -> mx.array:
        return times_columns(x, self.weight.T, 3)


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


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up."""
    return _swiglu(gate, up)


def grouped_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    visible: mx.array | None = None,
) -> mx.array:
    """Attention `[B, H, L, d]` of queries of that shape over keys and values `[B, H_kv, n, d]`.

    Query heads that share a KV head are rows of one product, where MLX's CPU op would read the keys
    once for each. `visible` `[L, n]` or `[B, 1, L, n]`, bool, tells what a query sees; None: all.
    What a query that sees nothing gets is finite, as other queries may read past it later.
    """
    batch, heads, length, dims = queries.shape
    groups, group = keys.shape[1], heads // keys.shape[1]
    rows = (queries * (scale * _LOG2_E)).reshape(batch, groups, group * length, dims)
    scores = rows @ keys.swapaxes(-1, -2)
    if visible is not None:
        scores = mx.where(mx.tile(visible, (group, 1)), scores, _LOWEST)
    powers = _powers(scores, scores.max(-1, keepdims=True))
    mixed = (powers @ values) / powers.sum(-1, keepdims=True)
    return mixed.reshape(batch, heads, length, dims)


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Rows `[..., D]` over their root mean square: three ops, where MLX's on a CPU is seven."""
    return _normed(x, (x * x).mean(-1, keepdims=True), weight, mx.array(eps))


class FusedNorm(nn.RMSNorm):
    """`rms_norm` as a module: what a module of MLX's class becomes."""

    def __call__(self, x: mx.array) -> mx.array:
        return rms_norm(x, self.weight, self.eps)


def frequencies(base: float, dims: int) -> mx.array:
    """Radians a position of each of the `dims / 2` channel pairs, computed as in MLX's rope."""
    return mx.exp(mx.arange(0, -1, -2 / dims) * math.log(base))


class Turns:
    """Rope on the halves of whole heads; what turns them is remembered, as all layers turn alike.

    `frequencies` `[d / 2]`, float32: radians a position of each pair of channels.
    """

    def __init__(self, frequencies: np.ndarray[Any, Any]) -> None:
        self._frequencies = frequencies
        self._at = (-1, 0)
        self._table = mx.array(0), mx.array(0)

    def __call__(self, x: mx.array, position: int) -> mx.array:
        """x `[B, H, L, d]`, standing at `position` and after."""
        if self._at != (position, x.shape[2]):
            along = np.arange(position, position + x.shape[2], dtype=np.float32)
            angles = along[:, None] * self._frequencies
            self._table = mx.array(np.cos(angles)), mx.array(np.sin(angles))
            self._at = (position, x.shape[2])
        return _turned(x, *self._table)


class Causal:
    """What a block's rows see of the context and of one another; the last answer is remembered.

    All layers of a pass ask for the same.
    """

    def __init__(self) -> None:
        self._rows, self._keys = 0, 0
        self._visible: mx.array | None = None

    def __call__(self, rows: int, keys: int) -> mx.array | None:
        """bool `[rows, keys]`, the rows standing at the end of the keys; None: one row sees all."""
        if rows == 1:
            return None
        if (rows, keys) != (self._rows, self._keys):
            seen = np.tri(rows, keys, keys - rows, dtype=bool)
            self._rows, self._keys, self._visible = rows, keys, mx.array(seen)
        return self._visible


def _plain_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * up / (1 + mx.power(2.0, gate * -_LOG2_E))


def _plain_powers(scores: mx.array, top: mx.array) -> mx.array:
    return mx.power(2.0, scores - top)


def _plain_normed(x: mx.array, square: mx.array, weight: mx.array, eps: mx.array) -> mx.array:
    return x * mx.rsqrt(square + eps) * weight


def _plain_turned(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


_normed = mx.compile(_plain_normed, shapeless=True)
_turned = mx.compile(_plain_turned)
_swiglu = mx.compile(_plain_swiglu, shapeless=True)
_powers = mx.compile(_plain_powers, shapeless=True)
