"""The tiny drafter of `tiny.py` as each packaging would publish it: config and tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.drafter import Drafter

from .tiny import RAW, parameters

DRAFTED = (3, 5, 8, 13, 21, 34)
"""The tokens of the reduced vocabulary."""


def speculators_config(**changes: Any) -> dict[str, Any]:
    """As speculators 0.9.0 writes it: tap ids 2 and 5 are the outputs of layers 1 and 4."""
    layers: tuple[str, ...] = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    layers += ("num_key_value_heads",)
    layers += ("head_dim", "intermediate_size", "vocab_size", "rms_norm_eps", "model_type")
    nested = {name: RAW[name] for name in layers} | {
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "layer_types": ["full_attention", "full_attention"],
        "sliding_window": None,
        "hidden_act": "silu",
    }
    config = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": nested,
        "draft_vocab_size": RAW["vocab_size"],
        "block_size": 8,
        "aux_hidden_state_layer_ids": [2, 5],
        "mask_token_id": 63,
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "speculators_config": {
            "algorithm": "dflash",
            "verifier": {"name_or_path": "org/Target-8B", "architectures": ["Qwen3ForCausalLM"]},
        },
    }
    return {key: value for key, value in (config | changes).items() if value is not None}


def speculators_layers(**changes: Any) -> dict[str, Any]:
    """The config with some keys of `transformer_layer_config` changed."""
    config = speculators_config()
    config["transformer_layer_config"] |= changes
    return config


def deepspec_config(**changes: Any) -> dict[str, Any]:
    """As DeepSpec writes it: ids at the top, block 7, no word on what a row predicts."""
    config = {key: RAW[key] for key in RAW if key != "dflash_config"} | RAW["dflash_config"]
    config |= {"architectures": ["Qwen3DSparkModel"], "block_size": 7, "markov_rank": 0}
    return config | changes


def specforge_config(**own: Any) -> dict[str, Any]:
    """As SpecForge writes it."""
    return RAW | {"dflash_config": {**RAW["dflash_config"], "projector_type": None, **own}}


def reduced(drafter: Drafter, ids: tuple[int, ...] = DRAFTED) -> dict[str, mx.array]:
    """Its tensors, with a head of its own over the tokens `ids`, and the maps to them."""
    head = mx.random.normal((len(ids), 32), key=mx.random.key(9))
    chosen = [token in ids for token in range(64)]
    offsets = [token - i for i, token in enumerate(ids)]
    return parameters(drafter) | {
        "lm_head.weight": head,
        "d2t": mx.array(offsets, mx.int64),
        "t2d": mx.array(chosen),
    }


def with_the_targets(drafter: Drafter) -> dict[str, mx.array]:
    """Its tensors, with copies of the target's embedding, norm and head among them."""
    table = mx.random.normal((64, 32), key=mx.random.key(8))
    borrowed = {"embed_tokens.weight": table, "lm_head.weight": table}
    return parameters(drafter) | borrowed | {"verifier_norm.weight": mx.ones((32,))}


def write(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> Path:
    """A checkpoint on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder
