"""Which GGUF tensor is which module of the mlx-lm model, a table for each family.

A further architecture is one more `Architecture` in `ARCHITECTURES`, and its config's function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from . import gguf_configs as configs
from .gguf_file import GGUFFile, GGUFTensor

LAYER = "blk."


@dataclass(frozen=True)
class Architecture:
    """One model family.

    `modules` and `layer_modules` map GGUF names without their `.weight` or `.bias` to module paths;
    `biases` are those of a layer that must have a bias. `rope_pairs` names the layer tensors whose
    rows GGUF reorders, and the config key that holds their number of heads. `derived` are tensors
    that the config stands for. `norms_less_one`: GGUF has the norms' weights as 1 + w. `half`: the
    activations stay within float16. `ends` are control tokens that end an answer, where there are
    such, besides the one that the file names.
    """

    modules: Mapping[str, str]
    layer_modules: Mapping[str, str]
    config: Callable[[GGUFFile], dict[str, Any]]
    biases: frozenset[str] = frozenset()
    rope_pairs: Mapping[str, str] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    norms_less_one: bool = False
    half: bool = True
    ends: tuple[str, ...] = ()

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
        """The tensors that a complete file holds."""
        top = set(self.modules) - ({"output"} if config["tie_word_embeddings"] else set())
        names = [f"{name}.weight" for name in self.layer_modules]
        names += [f"{name}.bias" for name in self.biases]
        layers = range(config["num_hidden_layers"])
        return {f"{name}.weight" for name in top} | {
            f"{LAYER}{number}.{name}" for number in layers for name in names
        }

    def tensors(self, file: GGUFFile) -> dict[str, GGUFTensor]:
        """The tensors to import, by name, as the published checkpoint has them."""
        kept = {name: t for name, t in file.tensors.items() if name not in self.derived}
        if self.norms_less_one:
            kept |= {n: less_one(t) for n, t in kept.items() if n.endswith("_norm.weight")}
        return kept


def unpair(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of rotary rows: (0, d/2, 1, d/2 + 1, ...) becomes (0, 1, ..., d - 1).

    `rows` is [heads * d, ...]; ggml's `llama` rotates neighbours, MLX and the published checkpoints
    rotate row i with row i + d/2.
    """
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def less_one(tensor: GGUFTensor) -> GGUFTensor:
    """The weights w of a norm that is stored as 1 + w, float32.

    Published ones are bfloat16, of which the sum in float32 has lost the last bits: where a
    bfloat16 gives that very sum, it is taken for what was published.
    """
    stored = tensor.data.astype(np.float32)
    near = (stored.astype(np.float64) - 1).astype(np.float32)
    bits = near.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    data = np.where((rounded + np.float32(1)) == stored, rounded, near)
    return replace(tensor, type="F32", data=data)


_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}
_QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        _TOP,
        _ATTENTION | _MLP,
        configs.llama_config,
        rope_pairs={"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"},
        derived=frozenset({"rope_freqs.weight"}),
        ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ),
    "qwen2": Architecture(
        _TOP,
        _ATTENTION | _MLP,
        configs.qwen2_config,
        biases=frozenset({"attn_q", "attn_k", "attn_v"}),
        ends=_QWEN_ENDS,
    ),
    "qwen3": Architecture(
        _TOP, _ATTENTION | _QK_NORMS | _MLP, configs.qwen3_config, ends=_QWEN_ENDS
    ),
    "qwen3moe": Architecture(
        _TOP, _ATTENTION | _QK_NORMS | _EXPERTS, configs.qwen3moe_config, ends=_QWEN_ENDS
    ),
    "gemma3": Architecture(
        _TOP,
        _ATTENTION
        | _QK_NORMS
        | _MLP
        | {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        configs.gemma3_config,
        norms_less_one=True,
        half=False,
        ends=("<end_of_turn>",),
    ),
}
