"""Tiny GGUF files, written by the `gguf` package's own writer and quantizer.

The model is a random Llama in the published order of rows; writing pairs the rotary rows as GGUF
does, for Llamas. Its vocabulary is every byte, a few merges and four added tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS = 64, 4, 2, 16, 96, 2
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "Ġ g", "r a", "v i", "t y"]
WORDS = [merge.replace(" ", "") for merge in MERGES]
ADDED = {"<|endoftext|>": 3, "<|im_start|>": 3, "<|im_end|>": 3, "<thought>": 4}
TOKENS = [*ADDED, *sorted(ByteLevel.alphabet()), *WORDS]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

METADATA: Mapping[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [ADDED.get(token, 1) for token in TOKENS],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}


@dataclass
class TinyGGUF:
    """What to write: change it, then `write` it.

    `weights` are float32 in the published order of rows; `types` gives the ggml type of each.
    """

    weights: dict[str, np.ndarray]
    types: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=lambda: dict(METADATA))
    architecture: str = "llama"

    def write(self, path: Path) -> Path:
        """Write the file; integers are stored as uint32, as llama.cpp does."""
        writer = GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            _add(writer, key, value)
        for name in self.weights:
            kind = GGMLQuantizationType[self.types[name]]
            stored = quants.quantize(self._paired(name), kind)
            writer.add_tensor(name, stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def stored(self, name: str) -> np.ndarray:
        """What the file says `name` is, float32 in the published order of rows."""
        kind = GGMLQuantizationType[self.types[name]]
        weights = self.weights[name]
        # Rows are quantized one by one, so their order does not change their values.
        return quants.dequantize(quants.quantize(weights, kind), kind).reshape(weights.shape)

    def _paired(self, name: str) -> np.ndarray:
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        rows = self.weights[name]
        if heads is None or self.architecture != "llama":
            return rows
        order = [
            head * HEAD_DIM + half * HEAD_DIM // 2 + pair
            for head in range(heads)
            for pair in range(HEAD_DIM // 2)
            for half in range(2)
        ]
        return rows[order]


def tiny_gguf(matrices: str = "F32", embedding: str | None = None, tied: bool = True) -> TinyGGUF:
    """A model whose matrices are of type `matrices`, the embedding of its own, norms float32."""
    random = np.random.default_rng(3)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    if not tied:
        shapes["output.weight"] = (len(TOKENS), HIDDEN)
    weights = {name: _random(random, shape) for name, shape in shapes.items()}
    types = dict.fromkeys(weights, matrices)
    norms = [f"blk.{layer}.{name}_norm" for layer in range(LAYERS) for name in ("attn", "ffn")]
    for norm in [*norms, "output_norm"]:
        # Values that float16 and bfloat16 both hold.
        weights[f"{norm}.weight"] = (random.integers(64, 192, HIDDEN) / 128).astype(np.float32)
        types[f"{norm}.weight"] = "F32"
    types["token_embd.weight"] = embedding or matrices
    return TinyGGUF(weights, types)


def _random(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (random.standard_normal(shape) / 8).astype(np.float32)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
