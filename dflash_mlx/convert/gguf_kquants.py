"""ggml types that MLX's affine quantization takes only nearly: what is kept of each, and as what.

Q4_K, Q5_K, Q5_0 and Q5_1 are affine in groups of 32, as MLX's: their codes are kept bit for bit.
Of the K-quants, whose scales are products d * sc, the scales are rounded to the file's float type.
 Q2_K, Q3_K and Q6_K have groups of 16, which MLX lacks: the `gguf` package dequantizes them
and MLX quantizes anew, with bits to spare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from .gguf_file import GGUFTensor
from .gguf_types import GROUP, Rows
from .safetensors_writer import Entry

Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Codes uint8 [rows, groups, 32], scales and biases float32 [rows, groups]."""

ANEW: Mapping[str, int] = {"Q2_K": 4, "Q3_K": 4, "Q6_K": 8}
"""Bits in which MLX quantizes anew what it cannot repack."""


def _float(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 that begins at byte `at` of each block, as float32."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _sixes(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight 6-bit scales and minimums of each block, out of 12 bytes."""
    first, second, third = (packed[..., i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _super(blocks: np.ndarray, high: bool) -> Groups:
    """Q4_K, or Q5_K with its `high` bits: blocks of 8 groups, w = d sc q - dmin m."""
    scales, minimums = _sixes(blocks[..., 4:16])
    nibbles = blocks[..., -128:].reshape(*blocks.shape[:-1], 4, 32)
    codes = np.stack([nibbles & 15, nibbles >> 4], axis=-2).reshape(*blocks.shape[:-1], 8, 32)
    if high:
        bits = blocks[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        codes = codes | bits << 4
    scale = _float(blocks, 0)[..., None] * scales
    bias = -_float(blocks, 2)[..., None] * minimums
    rows = blocks.shape[0]
    return codes.reshape(rows, -1, GROUP), scale.reshape(rows, -1), bias.reshape(rows, -1)


def _fives(blocks: np.ndarray, minimum: bool) -> Groups:
    """Q5_0, w = d (q - 16), or Q5_1 with a `minimum`, w = d q + m."""
    at = 4 if minimum else 2
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    nibbles = blocks[..., at + 4 :]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1) | bits << 4
    scale = _float(blocks, 0)
    return codes, scale, _float(blocks, 2) if minimum else -16 * scale


@dataclass(frozen=True)
class Repacked:
    """A type whose codes are kept: their width, the bytes of a block, and how it comes apart."""

    bits: int
    block_bytes: int
    groups: Callable[[np.ndarray], Groups]


REPACKED: Mapping[str, Repacked] = {
    "Q4_K": Repacked(4, 144, lambda blocks: _super(blocks, high=False)),
    "Q5_K": Repacked(5, 176, lambda blocks: _super(blocks, high=True)),
    "Q5_0": Repacked(5, 22, lambda blocks: _fives(blocks, minimum=False)),
    "Q5_1": Repacked(5, 24, lambda blocks: _fives(blocks, minimum=True)),
}

NEARLY: Mapping[str, int] = {**{name: kind.bits for name, kind in REPACKED.items()}, **ANEW}
"""The bits that each type gets; the group is 32."""


def dequantized(tensor: GGUFTensor) -> np.ndarray:
    """The weights of a quantized tensor, float32 in its shape, by the `gguf` package."""
    from gguf import GGMLQuantizationType, quants

    return quants.dequantize(tensor.data, GGMLQuantizationType[tensor.type]).reshape(tensor.shape)


def nearly(path: str, tensor: GGUFTensor, dtype: str, order: Rows) -> list[Entry]:
    """What is written for `tensor`, the weight [..., out, in] of module `path` (experts stacked).

    Weight uint32 [..., out, in * bits / 32]; scales and biases [..., out, in / 32] in `dtype`, F16
    or F32.
    """
    bits = NEARLY[tensor.type]
    *rows, width = tensor.shape
    made: list[np.ndarray] = []

    def part(number: int) -> np.ndarray:
        """Part `number` of three, asked for in this order; computed once."""
        if number == 0:
            made[:] = _parts(tensor, dtype, order)
        array, made[number] = made[number], np.empty(0)
        return array.reshape(*rows, -1)

    groups = (*rows, width // GROUP)
    return [
        Entry(f"{path}.weight", "U32", (*rows, width * bits // 32), lambda: part(0)),
        Entry(f"{path}.scales", dtype, groups, lambda: part(1)),
        Entry(f"{path}.biases", dtype, groups, lambda: part(2)),
    ]


def _parts(tensor: GGUFTensor, dtype: str, order: Rows) -> list[np.ndarray]:
    floats = {"F16": np.float16, "F32": np.float32}[dtype]
    if tensor.type in REPACKED:
        kind = REPACKED[tensor.type]
        blocks = tensor.data.reshape(prod(tensor.shape[:-1]), -1, kind.block_bytes)
        codes, scales, biases = kind.groups(order(blocks))
        return [_packed(codes, kind.bits), scales.astype(floats), biases.astype(floats)]
    import mlx.core as mx

    weights = order(dequantized(tensor)).astype(floats).reshape(-1, tensor.shape[-1])
    parts = mx.quantize(mx.array(weights), group_size=GROUP, bits=ANEW[tensor.type])
    return [np.array(part) for part in parts]


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, groups, 32] as MLX packs them: end to end, the first in the lowest bits."""
    places = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    eights = codes.reshape(codes.shape[0], -1, 8).astype(np.uint64) << places
    words = np.bitwise_or.reduce(eights, axis=-1)
    return words[..., None].view(np.uint8)[..., :bits].reshape(len(codes), -1).view("<u4")


def describe(tensors: Iterable[GGUFTensor]) -> list[str]:
    """A sentence for each type that is not kept exactly (Q5_0 and Q5_1 are)."""
    fates = {name: f"dequantized, then quantized to {bits} bits" for name, bits in ANEW.items()}
    fates |= dict.fromkeys(["Q4_K", "Q5_K"], "codes kept, scales rounded")
    counts = sorted(Counter(tensor.type for tensor in tensors).items())
    return [f"tensors of {name} ({n}): {fates[name]}" for name, n in counts if name in fates]
