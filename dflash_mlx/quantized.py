"""Quantized weights of a target or a drafter, and floats made of them where a CPU computes."""

from __future__ import annotations

import os
from typing import TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

KEYS = ("quantization", "quantization_config")
"""What a config says of quantized weights: to MLX, and to others."""

_MEMORY_SHARE = 0.6
"""Share of the machine's memory that weights dequantized for a CPU may take."""

Model = TypeVar("Model", bound=nn.Module)


def suited(model: Model, device: str) -> tuple[Model, str]:
    """`model` as it is best computed on `device`, and a word on its weights for the statistics.

    On a CPU quantized weights are dequantized once, as far as memory allows: MLX's quantized
    matmul there is slow and linear in rows. The word is empty where nothing is quantized.
    """
    widths = {module.bits for _, module in model.named_modules() if hasattr(module, "bits")}
    if not widths:
        return model, ""
    word = f"{'/'.join(str(width) for width in sorted(widths))}-bit weights"
    if device == "cpu" and _fits_dequantized(model):
        return cast(Model, dequantize_model(model)), f"{word}, dequantized"
    return model, word


def _fits_dequantized(model: nn.Module) -> bool:
    """Whether the weights, as 4-byte floats, take a bearable share of this machine's memory."""
    weights = 0
    for _, module in model.named_modules():
        packed = module.get("weight") if hasattr(module, "bits") else None
        weights += packed.size * 32 // module.bits if packed is not None else 0
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    rest = sum(array.size for _, array in parameters)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 * (weights + rest) < _MEMORY_SHARE * memory
