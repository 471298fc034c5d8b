"""Tiny 4-bit bfloat16 pairs with grouped heads, of shapes that every kernel takes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.drafter.serving import serve
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.kernels.metal import Metal
from dflash_mlx.target.model import Target
from tests.tiny import randomize

HIDDEN, VOCABULARY, DIMS = 64, 160, 32
_ATTENTION: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": DIMS,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_ATTENTION},
    "qwen3": {"model_type": "qwen3", **_ATTENTION, "tie_word_embeddings": False},
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": {
            **_ATTENTION,
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "full_attention_interval": 2,
            "linear_num_value_heads": 8,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "partial_rotary_factor": 0.5,
        },
    },
}


def model_of(family: str, dtype: mx.Dtype) -> nn.Module:
    """A new random model in 4 bits and `dtype`."""
    module = import_module(f"mlx_lm.models.{family}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(CONFIGS[family]))
    randomize(model, seed=0)
    _quantize(model, dtype)
    return model


def target(family: str, metal: Metal | None, dtype: mx.Dtype = mx.bfloat16) -> Target:
    """A new target with taps on its first two layers."""
    return Target(model_of(family, dtype), CONFIGS[family], (0, 1), metal=metal)


def near_ties(family: str, metal: Metal) -> Target:
    """A float32 target whose tokens 2i and 2i + 1 differ by a millionth: roundings choose."""
    model = model_of(family, mx.float32)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    keys = mx.random.split(mx.random.key(5))
    rows = mx.repeat(mx.random.normal((VOCABULARY // 2, HIDDEN), key=keys[0]), 2, axis=0)
    head.weight = rows * (1 + 1e-6 * mx.random.normal(rows.shape, key=keys[1]))
    model.lm_head = head
    mx.eval(model.parameters())
    return Target(model, CONFIGS[family], (0, 1), metal=metal)


def drafting(
    of: Target,
    metal: Metal | None,
    ids: tuple[int, ...] | None = None,
    dtype: mx.Dtype = mx.bfloat16,
) -> BlockDrafting:
    """A random drafter of one full and one sliding layer at work on `of`, blocks of up to 16."""
    drafter = Drafter(
        DrafterConfig(
            hidden_size=HIDDEN,
            num_layers=2,
            num_heads=4,
            num_kv_heads=1,
            head_dim=DIMS,
            intermediate_size=96,
            vocab_size=VOCABULARY,
            rms_norm_eps=1e-5,
            rope=RopeConfig(theta=10000.0),
            block_size=16,
            mask_token_id=VOCABULARY - 1,
            target_layer_ids=(0, 1),
            layer_types=("full_attention", "sliding_attention"),
            sliding_window=24,
        )
    )
    randomize(drafter, seed=1)
    _quantize(drafter, dtype)
    if metal is not None:
        serve(drafter, metal)
    return BlockDrafting(of, drafter, of.head_rows(ids) if ids else None)


def _quantize(model: nn.Module, dtype: mx.Dtype) -> None:
    nn.quantize(
        model,
        group_size=32,
        bits=4,
        class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0,
    )
    model.set_dtype(dtype)
    mx.eval(model.parameters())
