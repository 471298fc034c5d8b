"""The mlx-lm config of a GGUF model, from the file's metadata: one function a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DFlashError
from .gguf_file import GGUFFile


def short(value: float) -> float:
    """The decimal that a float32 was written for: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def llama_config(file: GGUFFile) -> dict[str, Any]:
    """Llama, Mistral, SmolLM: the family whose rotary rows GGUF reorders."""
    if _number(file, "expert_count", 0):
        raise DFlashError(f"{file.path} is a mixture of experts: it cannot be imported yet.")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_dense(file),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def qwen2_config(file: GGUFFile) -> dict[str, Any]:
    """Qwen 2 and 2.5: biases on q, k and v. mlx-lm's has no head_dim but hidden size / heads."""
    config = _dense(file)
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise DFlashError(
            f"{file.path} has heads of {config['head_dim']}, which mlx-lm's qwen2 does not know."
        )
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **config}


def qwen3_config(file: GGUFFile) -> dict[str, Any]:
    """Qwen 3: norms on q and k."""
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_dense(file)}


def qwen3moe_config(file: GGUFFile) -> dict[str, Any]:
    """Qwen 3 with experts in every layer; the published ones norm the router's chosen weights."""
    dense = _dense(file)
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **dense,
        "num_experts": int(_number(file, "expert_count")),
        "num_experts_per_tok": int(_number(file, "expert_used_count")),
        "moe_intermediate_size": int(_number(file, "expert_feed_forward_length")),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def gemma3_config(file: GGUFFile) -> dict[str, Any]:
    """Gemma 3: every sixth layer sees all, the others a window, at wavelengths of their own.

    The file does not say by what queries are divided: the root of a head's width, but in the 27B
    model, of 62 layers, that of the hidden size by the heads.
    """
    config = _dense(file)
    whole = config["num_hidden_layers"] == 62
    scalar = config["hidden_size"] // config["num_attention_heads"]
    local = _number(file, "rope.freq_base_swa", 10000.0)
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **config,
        "rope_local_base_freq": short(local),
        "query_pre_attn_scalar": scalar if whole else config["head_dim"],
        "sliding_window": int(_number(file, "attention.sliding_window")),
        "sliding_window_pattern": int(_number(file, "attention.sliding_window_pattern", 6)),
    }


def _number(file: GGUFFile, key: str, default: float | None = None) -> float:
    return file.number(f"{file.architecture}.{key}", default)


def _dense(file: GGUFFile) -> dict[str, Any]:
    """What all families have."""
    hidden, heads = (
        int(_number(file, "embedding_length")),
        int(_number(file, "attention.head_count")),
    )
    head_dim = int(_number(file, "attention.key_length", hidden // max(heads, 1)))
    if _number(file, "rope.dimension_count", head_dim) != head_dim:
        raise DFlashError(f"{file.path} rotates only a part of each head: it cannot be imported.")
    theta = short(_number(file, "rope.freq_base", 10000.0))
    return {
        "hidden_size": hidden,
        "intermediate_size": int(_number(file, "feed_forward_length")),
        "num_hidden_layers": int(_number(file, "block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_number(file, "attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "rms_norm_eps": short(_number(file, "attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(file, head_dim, theta),
        "max_position_embeddings": int(_number(file, "context_length")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _rope_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    kind = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise DFlashError(
            f"{file.path} scales its rotary positions by '{kind}', which cannot be"
            " imported: choose another file."
        )
    if kind != "none":
        scaling = {"rope_type": kind, "factor": short(_number(file, "rope.scaling.factor"))}
        if kind == "yarn":
            trained = int(_number(file, "rope.scaling.original_context_length"))
            scaling["original_max_position_embeddings"] = trained
        return scaling
    if "rope_freqs.weight" not in file.tensors:
        return None
    return _llama3_scaling(file, head_dim, theta)


def _llama3_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any]:
    """Llama 3.1's, which GGUF holds as a tensor of factors; refused if it is not just that."""
    stored = np.asarray(file.tensors["rope_freqs.weight"].data, dtype=np.float32)
    scaling = {
        "rope_type": "llama3",
        "factor": float(stored.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_factors(scaling, head_dim, theta)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
        raise DFlashError(
            f"{file.path} has rope_freqs other than those of Llama 3.1: it cannot be imported."
        )
    return scaling


def _llama3_factors(scaling: Mapping[str, Any], head_dim: int, theta: float) -> np.ndarray:
    """By how much Llama 3.1 divides each rotary frequency, float64 [head_dim / 2].

    Long wavelengths are divided by `factor`, short ones by 1, those between by a blend.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / scaling["factor"] + smooth)
