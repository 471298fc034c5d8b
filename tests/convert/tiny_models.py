"""Tiny checkpoints of three families, and the command run within the test's own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3_text, llama, qwen3

from dflash_mlx.backend import prepare
from dflash_mlx.commands.convert import run
from dflash_mlx.commands.convert_arguments import ConvertArguments
from tests.tiny import randomize
from tests.tiny_folders import write_tokenizer

FAMILIES = {"llama": llama, "qwen3": qwen3, "gemma3_text": gemma3_text}

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
"""What a converted model consists of."""


def tiny_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """2 layers, hidden 64, feed-forward 128, 320 tokens."""
    config = {
        "model_type": family,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "vocab_size": 320,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": family != "qwen3",
        "eos_token_id": 258,
        "torch_dtype": "bfloat16",
    }
    if family == "gemma3_text":
        config |= {"query_pre_attn_scalar": 32, "sliding_window": 64, "sliding_window_pattern": 2}
    return config | changes


def tiny_weights(config: dict[str, Any]) -> dict[str, mx.array]:
    """Random weights, bfloat16, by the names of the family's published checkpoints."""
    module = FAMILIES[config["model_type"]]
    model = module.Model(module.ModelArgs.from_dict(config))
    randomize(model, seed=9)
    model.set_dtype(mx.bfloat16)
    return cast("dict[str, mx.array]", tree_flatten(model.parameters(), destination={}))


def write_model(
    folder: Path, family: str = "llama", weights: dict[str, mx.array] | None = None, **changes: Any
) -> Path:
    """A whole checkpoint in `folder`, with a byte tokenizer."""
    folder.mkdir(parents=True)
    config = tiny_config(family, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = tiny_weights(config) if weights is None else weights
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    write_tokenizer(folder)
    return folder


def convert(source: Path | str, output: Path, **flags: Any) -> Path:
    """Run the command with `flags` as fields of its arguments."""
    run(ConvertArguments(source=str(source), output=output, **flags), prepare(exact=True))
    return output


def tensors(folder: Path) -> dict[str, mx.array]:
    """All tensors of a converted folder."""
    return cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))


def config_of(folder: Path) -> dict[str, Any]:
    """Its config."""
    return cast("dict[str, Any]", json.loads((folder / "config.json").read_text()))


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}
