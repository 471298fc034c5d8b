"""ggml tensor types as MLX arrays, bit for bit.

MLX's affine quantization is `w = scale * q + bias` with unsigned q, here in groups of 32, which is
ggml's own block length:

    Q4_0   w = d * (q - 8)     scale d, bias  -8 d
    Q4_1   w = d * q + m       scale d, bias     m
    Q8_0   w = d * s           scale d, bias -128 d, q = s + 128

d and m are float16. A power of two times a float16 is a float16 unless it overflows, so nothing is
rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import DFlashError
from .gguf_file import GGUFTensor
from .safetensors_writer import Entry

GROUP = 32
FLOATS = ("F32", "F16", "BF16")

Rows = Callable[[np.ndarray], np.ndarray]
"""A new order for the first axis of an array."""


@dataclass(frozen=True)
class Affine:
    """How one ggml block type becomes codes, scales and biases.

    Each function takes `blocks` uint8 [rows, blocks, bytes of a block].
    """

    bits: int
    block_bytes: int
    codes: Callable[
        [np.ndarray], np.ndarray
    ]  # -> uint8 [rows, blocks, 32 * bits / 8], as MLX packs them
    scale: Callable[[np.ndarray], np.ndarray]  # -> float16 [rows, blocks]
    bias: Callable[[np.ndarray], np.ndarray]  # -> float16 [rows, blocks]


def _half(at: int) -> Callable[[np.ndarray], np.ndarray]:
    """The float16 that begins at byte `at` of each block."""
    return lambda blocks: np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


def _pairs(at: int) -> Callable[[np.ndarray], np.ndarray]:
    """4-bit codes from byte `at`: ggml pairs weights j and j + 16 in a byte, MLX 2j and 2j + 1."""

    def repack(blocks: np.ndarray) -> np.ndarray:
        stored = blocks[..., at : at + 16]
        codes = np.concatenate([stored & 15, stored >> 4], axis=-1)
        return codes[..., 0::2] | codes[..., 1::2] << 4

    return repack


def _times(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """`factor` times each block's scale d (a power of two: exact or infinite, see `_finite`)."""

    def product(blocks: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return _half(0)(blocks) * np.float16(factor)

    return product


AFFINE = {
    "Q4_0": Affine(4, 18, codes=_pairs(2), scale=_half(0), bias=_times(-8)),
    "Q4_1": Affine(4, 20, codes=_pairs(4), scale=_half(0), bias=_half(2)),
    "Q8_0": Affine(8, 34, codes=lambda b: b[..., 2:] ^ 0x80, scale=_half(0), bias=_times(-128)),
}


def check_types(tensors: Iterable[GGUFTensor], nearly: Collection[str] = ()) -> None:
    """Raise `DFlashError` that names every type which is neither kept exactly nor in `nearly`."""
    refused: dict[str, int] = {}
    for tensor in tensors:
        if tensor.type not in (*AFFINE, *FLOATS, *nearly):
            refused[tensor.type] = refused.get(tensor.type, 0) + 1
    if refused:
        found = ", ".join(f"{count} of type {name}" for name, count in sorted(refused.items()))
        kept = ", ".join([*AFFINE, *FLOATS, *nearly])
        raise DFlashError(
            f"This GGUF holds tensors that cannot be imported ({found}): use a file of {kept}."
        )


def common_dtype(tensors: Iterable[GGUFTensor], half: bool = True) -> str:
    """The smallest float dtype (F16, BF16 or F32) that holds every float of `tensors` exactly.

    Without `half`, F16 is not among them: the model's activations would leave its range.
    One dtype for all: a float32 norm among float16 scales would widen every activation after it.
    """
    tensors = list(tensors)
    types = {t.type for t in tensors}
    if not half and not types - {*FLOATS}:
        candidate = "BF16"
    elif not half:
        return "F32"
    elif types - {"BF16", "F32"}:
        candidate = "F16"
    elif "BF16" in types:
        candidate = "BF16"
    else:
        return "F32"
    others = (t for t in tensors if t.type in FLOATS and t.type != candidate)
    return candidate if all(_survives(_float32(t), candidate) for t in others) else "F32"


def entries(
    path: str, parameter: str, tensor: GGUFTensor, dtype: str, order: Rows = lambda rows: rows
) -> list[Entry]:
    """What is written for `tensor`, a module's `parameter` ("weight" or "bias").

    Floats are stored in `dtype`; `order` puts the rows in their place. A float tensor gives one
    entry; a quantized weight [out, in] gives weight uint32 [out, in * bits / 32], and scales and
    biases [out, in / 32].
    """
    if tensor.type in FLOATS:

        def values() -> np.ndarray:
            return _narrow(order(_float32(tensor)), dtype)

        return [Entry(f"{path}.{parameter}", dtype, tensor.shape, values)]
    kind = AFFINE[tensor.type]
    *rows, width = tensor.shape
    groups = (*rows, width // GROUP)

    def blocks() -> np.ndarray:
        return order(tensor.data.reshape(*groups, kind.block_bytes))

    def weight() -> np.ndarray:
        return kind.codes(blocks()).reshape(*rows, -1).view("<u4")

    def floats(part: Callable[[np.ndarray], np.ndarray]) -> Callable[[], np.ndarray]:
        return lambda: _narrow(_finite(part(blocks()), tensor).astype(np.float32), dtype)

    return [
        Entry(f"{path}.weight", "U32", (*rows, width * kind.bits // 32), weight),
        Entry(f"{path}.scales", dtype, groups, floats(kind.scale)),
        Entry(f"{path}.biases", dtype, groups, floats(kind.bias)),
    ]


def _finite(halves: np.ndarray, tensor: GGUFTensor) -> np.ndarray:
    if not np.isfinite(halves).all():
        raise DFlashError(
            f"Tensor {tensor.name} has block scales that float16 cannot hold: fetch the file again."
        )
    return halves


def _float32(tensor: GGUFTensor) -> np.ndarray:
    if tensor.type == "BF16":
        bits = np.ascontiguousarray(tensor.data).view("<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    return tensor.data.astype(np.float32).reshape(tensor.shape)


def _survives(array: np.ndarray, dtype: str) -> bool:
    if dtype == "BF16":
        return not (array.view(np.uint32) & 0xFFFF).any()
    with np.errstate(over="ignore"):
        return bool((array.astype(np.float16) == array).all())


def _narrow(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` float32 in `dtype`, which is known to hold it exactly (bfloat16 as uint16 bits)."""
    if dtype == "BF16":
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    return array.astype({"F16": np.float16, "F32": np.float32}[dtype])
