"""Load a target and its tokenizer with mlx-lm, in the dtype that suits this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from ..errors import DFlashError
from ..quantized import suited
from .kv_bits import group_size


def load_target(
    folder: Path, dtype: mx.Dtype | None, device: str, kv_bits: int | None = None
) -> tuple[nn.Module, dict[str, Any], str]:
    """The mlx-lm model in `folder`, its config, and a word on its weights for the statistics.

    Without a `dtype`, a CPU computes in float32, and a GPU in the checkpoint's own type. Code in
    a checkpoint is never run. Raises DFlashError, and UsageError where `kv_bits` do not suit the
    model, before any weight is read.
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
    model, weights = suited(model, device)
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
