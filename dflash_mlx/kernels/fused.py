"""Attention, norms, rope and activations in few ops, for a CPU with OpenBLAS; see `products` too.

On such a machine MLX runs each small op by itself, and a pass of a small model has many. Not for
`exact`: sums are in another order than MLX's own, as OpenBLAS's are anyway.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

_LOG2_E = math.log2(math.e)
"""MLX's exponential takes 25 ns an element on x86, its power 9: so e^x is here 2^(x log2 e)."""

_LOWEST = float(np.finfo(np.float32).min)


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
