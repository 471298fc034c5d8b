"""Which GGUF tensor is which module of the mlx-lm model, and the config that goes with them.

A further architecture is one more `Architecture` in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DFlashError
from .gguf_file import GGUFFile

LAYER = "blk."


@dataclass(frozen=True)
class Architecture:
    """One model family.

    `modules` and `layer_modules` map GGUF names without their `.weight` or `.bias` to module paths.
    `rope_pairs` names the layer tensors whose rows GGUF reorders, and the config key that holds
    their number of heads. `derived` are tensors that the config stands for.
    """

    modules: Mapping[str, str]
    layer_modules: Mapping[str, str]
    rope_pairs: Mapping[str, str]
    derived: frozenset[str]
    config: Callable[[GGUFFile], dict[str, Any]]

    def module(self, stem: str) -> str | None:
        """The module path of GGUF tensor `stem` ("blk.3.attn_q"), None if there is none."""
        if not stem.startswith(LAYER):
            return self.modules.get(stem)
        _, number, name = stem.split(".", 2)
        path = self.layer_modules.get(name)
        return path and f"model.layers.{number}.{path}"

    def heads(self, stem: str, config: Mapping[str, Any]) -> int | None:
        """The heads whose rows have to be put back in order, None if the order is right."""
        key = self.rope_pairs.get(stem.split(".")[-1]) if stem.startswith(LAYER) else None
        return int(config[key]) if key else None

    def expected(self, config: Mapping[str, Any]) -> set[str]:
        """The stems whose `.weight` a complete file holds."""
        top = set(self.modules) - ({"output"} if config["tie_word_embeddings"] else set())
        layers = range(config["num_hidden_layers"])
        return top | {f"{LAYER}{n}.{name}" for n in layers for name in self.layer_modules}


def unpair(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of rotary rows: (0, d/2, 1, d/2 + 1, ...) becomes (0, 1, ..., d - 1).

    `rows` is [heads * d, ...]; ggml's `llama` rotates neighbours, MLX and the published checkpoints
    rotate row i with row i + d/2.
    """
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _short(value: float) -> float:
    """The decimal that a float32 was written for: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    prefix = f"{file.architecture}.rope.scaling."
    kind = file.metadata.get(prefix + "type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": _short(file.number(prefix + "factor"))}
    if kind != "none":
        raise DFlashError(
            f"{file.path} scales its rotary positions by '{kind}', which cannot be"
            " imported: choose another file."
        )
    if "rope_freqs.weight" not in file.tensors:
        return None
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


def _llama_config(file: GGUFFile) -> dict[str, Any]:
    def number(key: str, default: float | None = None) -> float:
        return file.number(f"{file.architecture}.{key}", default)

    if number("expert_count", 0):
        raise DFlashError(f"{file.path} is a mixture of experts: it cannot be imported yet.")
    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    head_dim = int(number("attention.key_length", hidden // max(heads, 1)))
    if number("rope.dimension_count", head_dim) != head_dim:
        raise DFlashError(f"{file.path} rotates only a part of each head: it cannot be imported.")
    theta = _short(number("rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(number("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _short(number("attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(file, head_dim, theta),
        "max_position_embeddings": int(number("context_length")),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


LLAMA = Architecture(
    modules={"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
    layer_modules={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    rope_pairs={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
    derived=frozenset({"rope_freqs.weight"}),
    config=_llama_config,
)

ARCHITECTURES: Mapping[str, Architecture] = {"llama": LLAMA}
