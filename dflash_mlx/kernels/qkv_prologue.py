"""What lies between the q/k/v projection and attention: norms of heads, and rope."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from ..dtypes import dtype_name
from .metal import MAX_ROWS, MORE_ROWS, Metal
from .race import Contest

MAX_DIMS = 256
_DTYPES = (mx.bfloat16, mx.float16, mx.float32)


@dataclass(frozen=True)
class Prologue:
    """How an attention layer prepares its heads.

    Of each head's `dims` channels the first `rotated` are turned: by `base` or by `wavelengths`
    `[rotated / 2]` float32 (positions per radian), at positions times `position_scale`, all
    channels times `magnitude` (yarn). `q_weight` and `k_weight` `[dims]` are the weights of the
    RMSNorms before it, or None for no norm.
    """

    heads: int
    kv_heads: int
    dims: int
    rotated: int
    base: float | None = None
    wavelengths: mx.array | None = None
    interleaved: bool = False
    position_scale: float = 1.0
    magnitude: float = 1.0
    q_weight: mx.array | None = None
    k_weight: mx.array | None = None
    epsilon: float = 1e-6

    @cached_property
    def table(self) -> mx.array:
        """The wavelengths, computed from the base if they are not given."""
        if self.wavelengths is not None:
            return self.wavelengths
        if self.base is None:
            raise ValueError("A rope needs a base or wavelengths.")
        pairs = range(0, self.rotated, 2)
        return mx.array([self.base ** (pair / self.rotated) for pair in pairs], mx.float32)


Heads = tuple[mx.array, mx.array, mx.array]


def qkv_prologue(
    projected: mx.array, position: int, layer: Prologue, *, metal: Metal | None = None
) -> Heads:
    """Queries `[B, H, L, d]`, keys and values `[B, H_kv, L, d]` from one projection.

    `projected` `[B, L, (H + 2 H_kv) d]` holds q, k and v side by side; row 0 of each sequence
    stands at `position`. The kernel works in float32 and rounds once, the twin at each operation.
    """
    if metal is None:
        return twin(projected, position, layer)
    contest = Contest(
        f"qkv_prologue {layer.heads} + {layer.kv_heads} heads of {layer.dims},"
        f" {dtype_name(projected.dtype)}",
        lambda: list(_kernel(projected, position, layer, metal)),
        lambda: list(twin(projected, position, layer)),
    )
    if not metal.serves("qkv_prologue", unsupported(projected, layer), contest):
        return twin(projected, position, layer)
    return _kernel(projected, position, layer, metal)


def _kernel(projected: mx.array, position: int, layer: Prologue, metal: Metal) -> Heads:
    batch, rows, _ = projected.shape
    heads, kv_heads, dims = layer.heads, layer.kv_heads, layer.dims
    settings = mx.array([position, rows, heads, kv_heads, layer.rotated, 0, 0, 0], mx.int32)
    numbers = mx.array([layer.epsilon, layer.position_scale, layer.magnitude, 0.0], mx.float32)
    norm = layer.q_weight is not None
    weights = [layer.q_weight, layer.k_weight] if norm else [layer.table, layer.table]
    kernel = metal.kernel(
        "qkv_prologue",
        ["projected", "q_weight", "k_weight", "wavelengths", "settings", "numbers"],
        ["queries", "keys", "values"],
        "fragments.h",
    )
    every = heads + 2 * kv_heads
    small = (batch, kv_heads, rows, dims)
    queries, keys, values = kernel(
        inputs=[projected, *weights, layer.table, settings, numbers],
        template=[
            ("T", projected.dtype),
            ("D", dims),
            ("NORM", norm),
            ("INTERLEAVED", layer.interleaved),
        ],
        grid=(32 * every, rows, batch),
        threadgroup=(32 * math.gcd(every, 8), 1, 1),
        output_shapes=[(batch, heads, rows, dims), small, small],
        output_dtypes=[projected.dtype] * 3,
    )
    return queries, keys, values


def unsupported(projected: mx.array, layer: Prologue) -> str | None:
    """Why the kernel cannot take this call, or None if it can."""
    if projected.shape[1] > MAX_ROWS:
        return MORE_ROWS
    if layer.dims % 2 or layer.rotated % 2 or layer.dims > MAX_DIMS:
        return f"head dim {layer.dims}"
    if (layer.q_weight is None) != (layer.k_weight is None):
        return "a norm for queries or keys alone"
    return None if projected.dtype in _DTYPES else f"rows in {projected.dtype}"


def twin(projected: mx.array, position: int, layer: Prologue) -> Heads:
    """`qkv_prologue` in plain MLX."""
    heads, kv_heads = layer.heads, layer.kv_heads
    split = projected.reshape(*projected.shape[:2], -1, layer.dims)
    queries, keys, values = mx.split(split, [heads, heads + kv_heads], axis=2)
    queries = _prepared(queries, position, layer, layer.q_weight)
    keys = _prepared(keys, position, layer, layer.k_weight)
    return queries, keys, values.swapaxes(1, 2)


def _prepared(x: mx.array, position: int, layer: Prologue, weight: mx.array | None) -> mx.array:
    if weight is not None:
        x = mx.fast.rms_norm(x, weight, layer.epsilon)
    x = x.swapaxes(1, 2)
    if layer.magnitude != 1.0:
        x = x * layer.magnitude
    return mx.fast.rope(
        x,
        layer.rotated,
        traditional=layer.interleaved,
        base=layer.base if layer.wavelengths is None else None,
        scale=layer.position_scale,
        offset=position,
        freqs=layer.wavelengths,
    )
