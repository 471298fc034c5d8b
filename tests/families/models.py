"""Every target family as a tiny random model of the true architecture, of mlx-lm's own classes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.config import SecondConfig
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.engine.drafting import BlockDrafting, draft_head
from dflash_mlx.target.model import Target
from tests.tiny import HIDDEN, MASK, VOCABULARY, randomize

WINDOW = 8
"""Smaller than any run: every window slides."""

_ATTENTION: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "tie_word_embeddings": False,
}
_GATED_MOE: dict[str, Any] = {**_EXPERTS, "shared_expert_intermediate_size": 32}
_WINDOWED = ["sliding_attention", "full_attention"]

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _ATTENTION,
    "qwen2": _ATTENTION,
    "qwen3": {**_ATTENTION, "tie_word_embeddings": False},
    "qwen3_moe": {**_ATTENTION, **_EXPERTS},
    "smollm3": {**_ATTENTION, "no_rope_layers": [1, 0]},
    "mistral3": {
        "text_config": {
            **_ATTENTION,
            "model_type": "ministral3",
            "layer_types": _WINDOWED,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 2048,
            },
        }
    },
    "gemma3_text": {
        **_ATTENTION,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    },
    "gemma4": {
        "vocab_size": VOCABULARY,
        "text_config": {
            **_ATTENTION,
            "model_type": "gemma4_text",
            "num_hidden_layers": 5,
            "global_head_dim": 32,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "sliding_window": WINDOW,
            "layer_types": [*_WINDOWED[:1], *_WINDOWED, *_WINDOWED],
            "final_logit_softcapping": 10.0,
        },
    },
    "gpt_oss": {
        **_ATTENTION,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "layer_types": _WINDOWED,
    },
    "qwen3_next": {**_ATTENTION, **_GATED_MOE, **_DELTA, "partial_rotary_factor": 0.5},
    "qwen3_5": {"text_config": {**_ATTENTION, **_DELTA, "model_type": "qwen3_5_text"}},
    "qwen3_5_moe": {
        "text_config": {**_ATTENTION, **_GATED_MOE, **_DELTA, "model_type": "qwen3_5_moe_text"}
    },
    "lfm2": {
        **_ATTENTION,
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": HIDDEN,
        "block_ff_dim": 48,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "nemotron_h": {
        **_ATTENTION,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 1,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "-", "*", "M"],
    },
}
_SEEDS = {"gemma4": 18, "gpt_oss": 11, "qwen2": 18}  # of which the model is least monotonous
FAMILIES = tuple(CONFIGS)
BITS = (None, 4, 8)


def attention_config() -> dict[str, Any]:
    """What all families have in common, of their configs."""
    return dict(_ATTENTION)


def build(family: str, **changes: Any) -> nn.Module:
    """A new random model of the family, its config with some `changes`."""
    module = import_module(f"mlx_lm.models.{family}")
    config = config_of(family)
    config.get("text_config", config).update(changes)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    randomize(model, seed=_SEEDS.get(family, 3))
    return model


def config_of(family: str) -> dict[str, Any]:
    """Its config.json."""
    config = {"model_type": family, **CONFIGS[family]}
    if "text_config" in config:
        config["text_config"] = dict(config["text_config"])
    return config


@cache
def family_target(family: str, bits: int | None = None, kv_bits: int | None = None) -> Target:
    """A target with taps on its first and last layer; with `bits`, its weights are quantized.

    With `kv_bits` its heads are wide enough for their keys and values to be quantized.
    """
    model = build(family, **({"head_dim": 32} if kv_bits else {}))
    if bits is not None:
        nn.quantize(model, group_size=32, bits=bits, class_predicate=_divisible)
        mx.eval(model.parameters())
    layers = len(Target(model, config_of(family)).body.layers)
    return Target(model, config_of(family), (0, layers - 1), kv_bits)


def _divisible(path: str, module: nn.Module) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0


DRAFTERS: dict[str, dict[str, Any]] = {
    "DFlash": {},
    "DFlash with sliding layers": {
        "layer_types": ("sliding_attention",) * 2,
        "sliding_window": WINDOW,
    },
    "DeepSpec": {"drafts_from_anchor": True, "block_size": 15},
    "vLLM speculators with a reduced vocabulary": {
        "draft_vocab": tuple(range(0, VOCABULARY, 2)),
        "own_head": True,
    },
    "DFlash 2": {"second": SecondConfig(kernel_size=2, group_size=16, rank=8, top_k=8)},
}
"""What packagings change in a drafter's config."""


@cache
def family_drafter(layers: int, window: int | None = None, kind: str = "DFlash") -> Drafter:
    """A random drafter for a family's target of so many layers; with a `window` it slides."""
    config = replace(
        DrafterConfig(
            hidden_size=HIDDEN,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            head_dim=16,
            intermediate_size=48,
            vocab_size=VOCABULARY,
            rms_norm_eps=1e-5,
            rope=RopeConfig(theta=10000.0),
            block_size=16,
            mask_token_id=MASK,
            target_layer_ids=(0, layers - 1),
            layer_types=("sliding_attention" if window else "full_attention",) * 2,
            num_target_layers=layers,
            sliding_window=window,
        ),
        **DRAFTERS[kind],
    )
    drafter = SecondDrafter(config) if config.second else Drafter(config)
    randomize(drafter, seed=1)
    return drafter


def family_drafting(
    target: Target, window: int | None = None, kind: str = "DFlash"
) -> BlockDrafting:
    """The random drafter at work on `target`."""
    drafter = family_drafter(target.num_layers, window, kind)
    return BlockDrafting(target, drafter, draft_head(target, drafter))
