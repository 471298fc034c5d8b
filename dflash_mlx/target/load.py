"""Load a target and its tokenizer with mlx-lm, in the dtype that suits this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from ..errors import DFlashError
from .kv_bits import group_size

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_MEMORY_SHARE = 0.6
"""Share of the machine's memory that weights dequantized for a CPU may take."""


def load_target(
    folder: Path, dtype: mx.Dtype | None, device: str, kv_bits: int | None = None
) -> tuple[nn.Module, dict[str, Any], str]:
    """The mlx-lm model in `folder`, its config, and a word on its weights for the statistics.

    Without a `dtype`, a CPU computes in float32 (with quantized weights dequantized once, as far
    as memory allows: MLX's quantized matmul on a CPU is slow and linear in rows), and a GPU in the
    checkpoint's own type. Code in a checkpoint is never run. Raises DFlashError, and UsageError
    where `kv_bits` do not suit the model, before any weight is read.
    """
    try:
        model, config = load_model(folder, lazy=True)
    except (ValueError, KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
        lacks = f"its config.json lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = lacks.strip().split("\n")[0]
        raise DFlashError(
            f"{folder} cannot be loaded as a model ({reason}): fetch it again, or choose another."
        ) from error
    if kv_bits is not None:
        group_size(model, kv_bits)
    if dtype is None and device == "cpu":
        dtype = mx.float32
    if dtype is not None:
        _cast(model, dtype)
    bits = _bits(model)
    if device == "cpu" and bits and _fits_dequantized(model):
        model = dequantize_model(model)
        weights = f"{bits}-bit weights, dequantized"
    else:
        weights = f"{bits}-bit weights" if bits else ""
    # Rope tables too, which are no parameters: left lazy, they would serve this thread alone.
    mx.eval(model)
    return model, config, weights


def load_pair_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    """The tokenizer in `folder`, with the end-of-text ids of the config. No code is run."""
    eos = config.get("eos_token_id")
    try:
        return load_tokenizer(
            folder,
            {"trust_remote_code": False},
            eos_token_ids=[eos] if isinstance(eos, int) else eos,
        )
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(":")
        raise DFlashError(
            f"The tokenizer in {folder} cannot be loaded ({reason}): fetch tokenizer.json and"
            " tokenizer_config.json again."
        ) from error


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast float parameters, but for those that the model itself says must stay as they are."""
    may_cast = getattr(model, "cast_predicate", lambda name: True)

    def cast(name: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(dtype) if floating and may_cast(name) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _bits(model: nn.Module) -> str:
    """The widths of quantized weights, such as "4" or "4/8"; empty where none is quantized."""
    widths = {module.bits for _, module in model.named_modules() if hasattr(module, "bits")}
    return "/".join(str(width) for width in sorted(widths))


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
