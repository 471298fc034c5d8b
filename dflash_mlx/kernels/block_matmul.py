"""A block's rows times a weight matrix, quantized or not."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ..dtypes import dtype_name
from .metal import MAX_ROWS, MORE_ROWS, Metal
from .race import Contest

WIDE = 16384
"""Outputs from which a threadgroup takes 128 of them: there are still enough threadgroups."""

_DTYPES = (mx.bfloat16, mx.float16, mx.float32)


class Weights(NamedTuple):
    """A matrix W [N, K] as MLX stores it.

    Plain: `matrix` [N, K] of floats, and nothing else. Quantized (affine, MLX's packing): `matrix`
    [N, K * bits / 32] uint32, `scales` and `biases` [N, K / group_size], W = scale * q + bias.
    """

    matrix: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group_size: int = 32
    bits: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        outputs, width = self.matrix.shape
        return outputs, width if self.scales is None else width * 32 // self.bits

    @classmethod
    def of(cls, layer: nn.Module) -> Weights | None:
        """Those of a linear layer or an embedding table; None where its kind is not known."""
        if isinstance(layer, nn.Linear | nn.Embedding):
            return cls(layer.weight)
        quantized = isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding)
        if quantized and layer.mode == "affine":
            parts = layer.weight, layer.scales, layer.biases
            return cls(*parts, layer.group_size, layer.bits)
        return None

    def rows(self, begin: int, end: int) -> Weights:
        """W[begin:end], which shares the memory of W."""
        scales = None if self.scales is None else self.scales[begin:end]
        biases = None if self.biases is None else self.biases[begin:end]
        return Weights(self.matrix[begin:end], scales, biases, self.group_size, self.bits)


def block_matmul(x: mx.array, weights: Weights, *, metal: Metal | None = None) -> mx.array:
    """`x` `[..., K]` times W transposed -> `[..., N]`, in the type of `x`.

    The kernel sums in float32 and takes up to 32 rows: 4- and 8-bit weights in groups of 32, 64 or
    128, or bfloat16, float16 or float32. Each weight is read once for all rows.
    """
    if metal is None or not served(x, weights, metal):
        return twin(x, weights)
    return launch(x, weights, metal)


def served(x: mx.array, weights: Weights, metal: Metal) -> bool:
    """Whether the kernel takes this call, which is counted."""
    obstacle = unsupported(x, weights)
    return metal.serves("block_matmul", obstacle, None if obstacle else _contest(x, weights, metal))


def _contest(x: mx.array, weights: Weights, metal: Metal) -> Contest:
    return Contest(
        f"block_matmul {case(x, weights)}",
        lambda: [launch(x, weights, metal)],
        lambda: [twin(x, weights)],
    )


def case(x: mx.array, weights: Weights) -> str:
    """What decides how fast a call is: the matrix, the type and the rows."""
    (outputs, inner), rows = weights.shape, x.size // x.shape[-1]
    stored = f"{weights.bits} bits in {weights.group_size}" if weights.bits else "floats"
    return f"{outputs} x {inner}, {stored}, {dtype_name(x.dtype)}, {rows} rows"


def launch(x: mx.array, weights: Weights, metal: Metal) -> mx.array:
    """`block_matmul` by the kernel, for calls that are `served`."""
    (outputs, inner), rows = weights.shape, x.size // x.shape[-1]
    kernel = metal.kernel(
        "block_matmul",
        ["rows_in", "weights", "scales", "biases"],
        ["product"],
        "fragments.h",
        "weights.h",
    )
    flat = x.reshape(rows, inner)
    panels = 2 if outputs >= WIDE else 1
    (product,) = kernel(
        inputs=[flat, *operands(weights)],
        template=[
            ("T", x.dtype),
            *layout(weights),
            ("TILES", row_tiles(rows)),
            ("PANELS", panels),
        ],
        grid=(256 * -(-outputs // (64 * panels)), 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[(rows, outputs)],
        output_dtypes=[x.dtype],
    )
    return product.reshape(*x.shape[:-1], outputs)


def row_tiles(rows: int) -> int:
    """Tiles of 8 rows, in one of three sizes, so that few kernels are compiled."""
    return 1 if rows <= 8 else 2 if rows <= 16 else 4


def operands(weights: Weights) -> list[mx.array]:
    """Matrix, scales and biases; the kernel never looks at the last two of a plain matrix."""
    matrix, scales, biases = weights[:3]
    if scales is None or biases is None:
        return [matrix, matrix, matrix]
    return [matrix, scales, biases]


def layout(weights: Weights) -> list[tuple[str, int]]:
    """The template arguments that say how a matrix is stored."""
    bits = weights.bits if weights.scales is not None else 8 * weights.matrix.itemsize
    return [("BITS", bits), ("GROUP", weights.group_size)]


def unsupported(x: mx.array, weights: Weights) -> str | None:
    """Why the kernel cannot take this call, or None if it can."""
    (outputs, inner), rows = weights.shape, x.size // x.shape[-1]
    if rows > MAX_ROWS:
        return MORE_ROWS
    if inner % 32 or outputs < 8:
        return f"a matrix of {outputs} x {inner}"
    if weights.scales is None and weights.matrix.dtype not in _DTYPES:
        return f"weights in {weights.matrix.dtype}"
    if weights.scales is not None and (
        weights.biases is None
        or weights.bits not in (4, 8)
        or weights.group_size not in (32, 64, 128)
    ):
        return f"{weights.bits} bits in groups of {weights.group_size}"
    return None if x.dtype in _DTYPES else f"rows in {x.dtype}"


def twin(x: mx.array, weights: Weights) -> mx.array:
    """`block_matmul` in plain MLX."""
    matrix, scales, biases, group_size, bits = weights
    if scales is None or biases is None:
        return (x @ matrix.T).astype(x.dtype)
    product = mx.quantized_matmul(x, matrix, scales, biases, group_size=group_size, bits=bits)
    return product.astype(x.dtype)
