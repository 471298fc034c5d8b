"""MLX's own Metal kernels, simulated, agree with MLX on the CPU: that makes the simulator credible.

The reference is MLX's CPU result in float32 from the same inputs (already rounded to the kernel's
type), so the error is the kernel's: float32 sums in another order, or one rounding of the result to
the kernel's type, or, in the tiled matmul, also of each dequantized weight. Tolerances are relative
to the largest value.
"""

from __future__ import annotations

import types
from typing import Any

import mlx.core as mx
import pytest
from simulator import MODELS, Arithmetic, Simulator
from simulator.stock import Stock

TOLERANCE = {mx.float32: 3e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}


def worst(got: mx.array, expected: mx.array) -> float:
    """The largest difference, relative to the largest value."""
    difference = mx.abs(got.astype(mx.float32) - expected.astype(mx.float32)).max()
    return float(difference / mx.abs(expected).max())


def test_tolerances_are_the_rounding_of_each_type() -> None:
    """Half a unit in the last place of the largest value, with room for two of them."""
    assert TOLERANCE[mx.float16] > 2**-11
    assert TOLERANCE[mx.bfloat16] > 2**-8
    assert TOLERANCE[mx.bfloat16] < 2**-6


# Every kernel with every dtype, bit width and group size at least once; the full product is in
# scripts/simulator-sweep.
MATMULS = [
    ("affine_qmv_fast", mx.float32, 4, 64, (2, 24, 512)),
    ("affine_qmv_fast", mx.float16, 8, 128, (1, 16, 512)),
    ("affine_qmv_fast", mx.bfloat16, 4, 32, (3, 16, 1024)),
    ("affine_qmv", mx.float32, 8, 32, (2, 20, 160)),
    ("affine_qmv", mx.float16, 4, 128, (1, 36, 640)),
    ("affine_qmv", mx.bfloat16, 4, 64, (3, 12, 192)),
    ("affine_qmv_wide", mx.float32, 4, 128, (5, 24, 512)),
    ("affine_qmv_wide", mx.float16, 4, 64, (7, 24, 320)),
    ("affine_qmv_wide", mx.bfloat16, 8, 64, (2, 20, 256)),
    ("affine_qmm_t", mx.float32, 4, 64, (17, 64, 256)),
    ("affine_qmm_t", mx.float16, 8, 32, (33, 40, 128)),
    ("affine_qmm_t", mx.bfloat16, 4, 128, (5, 96, 256)),
]


@pytest.mark.parametrize(("kernel", "dtype", "bits", "group_size", "shape"), MATMULS)
def test_quantized_matmul_agrees_with_the_cpu(
    kernel: str,
    dtype: mx.Dtype,
    bits: int,
    group_size: int,
    shape: tuple[int, int, int],
    stock: Stock,
) -> None:
    rows, outer, inner = shape
    mx.random.seed(rows)
    x = mx.random.normal((rows, inner)).astype(dtype)
    weights = mx.quantize(mx.random.normal((outer, inner)).astype(dtype), group_size, bits)
    got, _ = stock.quantized_matmul(kernel, x, weights, group_size=group_size, bits=bits)
    packed, scales, biases = weights
    expected = mx.quantized_matmul(
        x.astype(mx.float32),
        packed,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=group_size,
        bits=bits,
    )
    assert worst(got, expected) < TOLERANCE[dtype]


# dtype, head dim, (batch, heads, kv heads, rows, context), mask, blocks of the two-pass kernel (0:
# one pass)
ATTENTIONS = [
    (mx.float32, 64, (1, 4, 2, 1, 45), None, 0),
    (mx.float16, 128, (2, 4, 1, 5, 70), "causal", 0),
    (mx.bfloat16, 96, (1, 3, 3, 2, 33), "bool", 0),
    (mx.float32, 256, (1, 2, 1, 3, 40), "float", 0),
    (mx.float32, 128, (1, 4, 1, 2, 200), "causal", 32),
    (mx.bfloat16, 64, (1, 4, 2, 3, 130), "bool", 32),
]


def make_mask(kind: str | None, shape: tuple[int, ...], dtype: mx.Dtype) -> Any:
    if kind == "bool":
        return mx.random.uniform(shape=shape) < 0.6
    return mx.random.normal(shape).astype(dtype) if kind == "float" else kind


@pytest.mark.parametrize(("dtype", "dim", "shape", "kind", "blocks"), ATTENTIONS)
def test_attention_agrees_with_the_cpu(
    dtype: mx.Dtype,
    dim: int,
    shape: tuple[int, int, int, int, int],
    kind: str | None,
    blocks: int,
    stock: Stock,
) -> None:
    batch, heads, kv_heads, rows, context = shape
    mx.random.seed(dim)
    queries = mx.random.normal((batch, heads, rows, dim)).astype(dtype)
    keys, values = mx.random.normal((2, batch, kv_heads, context, dim)).astype(dtype)
    mask = make_mask(kind, (batch, heads, rows, context), dtype)
    got, _ = stock.attention(
        queries,
        keys,
        values,
        scale=dim**-0.5,
        causal=kind == "causal",
        mask=mask if isinstance(mask, mx.array) else None,
        blocks=blocks,
    )
    wide = [a.astype(mx.float32) for a in (queries, keys, values)]
    if kind == "float":
        mask = mask.astype(mx.float32)
    expected = mx.fast.scaled_dot_product_attention(*wide, scale=dim**-0.5, mask=mask)
    assert worst(got, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_every_model_of_arithmetic_stays_near_the_cpu(
    model: Arithmetic, simulator: Simulator
) -> None:
    """Each model is a GPU that could be: it moves last bits, never results."""
    stock = Stock(simulator.toolchain, model)
    mx.random.seed(0)
    x = mx.random.normal((17, 256))
    weights = mx.quantize(mx.random.normal((64, 256)), 64, 4)
    got, _ = stock.quantized_matmul("affine_qmm_t", x, weights, group_size=64, bits=4)
    assert worst(got, mx.quantized_matmul(x, *weights, group_size=64, bits=4)) < 3e-6
    queries, keys, values = mx.random.normal((3, 1, 2, 45, 64))
    got, _ = stock.attention(queries[:, :, :1], keys, values, scale=0.125)
    expected = mx.fast.scaled_dot_product_attention(queries[:, :, :1], keys, values, scale=0.125)
    assert worst(got, expected) < 3e-6


def gated_delta_kernels(simulator: Simulator) -> types.SimpleNamespace:
    """mlx-lm's kernel makers, in a namespace of their own where Metal is the simulator."""
    from mlx_lm.models import gated_delta

    metal = types.SimpleNamespace(is_available=lambda: True)
    fast = types.SimpleNamespace(metal_kernel=simulator.metal_kernel)
    namespace = {**vars(gated_delta), "mx": types.SimpleNamespace(metal=metal, fast=fast)}

    def make(name: str, **options: bool) -> Any:
        function = getattr(gated_delta, name)
        copy = types.FunctionType(function.__code__, namespace, argdefs=function.__defaults__)
        return copy(**options)

    return types.SimpleNamespace(make=make, reference=gated_delta.gated_delta_ops)


@pytest.mark.parametrize(
    ("maker", "options", "dtype"),
    [
        ("_make_gated_delta_kernel", {}, mx.bfloat16),
        ("_make_gated_delta_kernel", {"has_mask": True, "vectorized": True}, mx.float32),
        ("_make_gated_delta_packed_kernel", {}, mx.float32),
    ],
)
def test_gated_deltanet_agrees_with_the_cpu(
    maker: str, options: dict[str, bool], dtype: mx.Dtype, simulator: Simulator
) -> None:
    batch, steps, key_heads, value_heads, dim = 2, 5, 2, 4, 128
    kernels = gated_delta_kernels(simulator)
    mx.random.seed(3)
    q, k = mx.random.normal((2, batch, steps, key_heads, dim)) / dim**0.5
    v = mx.random.normal((batch, steps, value_heads, 16))
    gate_shape = (batch, steps, value_heads, *([dim] if options.get("vectorized") else []))
    g = mx.random.uniform(0.5, 1, gate_shape)
    beta = mx.random.uniform(0, 1, (batch, steps, value_heads))
    state = mx.random.normal((batch, value_heads, 16, dim))
    q, k, v, beta = (a.astype(dtype) for a in (q, k, v, beta))
    mask = mx.arange(steps)[None] < mx.array([[4], [5]]) if options.get("has_mask") else None
    packed = "packed" in maker
    y, after = kernels.make(maker, **options)(
        inputs=[q, k, v, g, beta, state, steps, *([mask] if mask is not None else [])],
        template=[
            ("InT", dtype),
            ("StT", mx.float32),
            ("Dk", dim),
            ("Dv", 16),
            ("Hk", key_heads),
            ("Hv", value_heads),
        ],
        grid=(32, 2 if packed else 16, batch * value_heads),
        threadgroup=(32, 2 if packed else 4, 1),
        output_shapes=[v.shape, state.shape],
        output_dtypes=[dtype, mx.float32],
    )
    wide = [a.astype(mx.float32) for a in (q, k, v)]
    expected_y, expected = kernels.reference(*wide, g, beta.astype(mx.float32), state, mask)
    assert worst(after, expected) < 2e-6
    if mask is not None:  # the kernel writes zeros where the mask is off
        expected_y = mx.where(mask[:, :, None, None], expected_y, 0)
    assert worst(y, expected_y) < TOLERANCE[dtype]
