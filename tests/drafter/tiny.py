"""Small random drafters, in memory and on disk, and the definition of the pass to test them by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.drafter import Drafter, DrafterCache, DrafterConfig
from dflash_mlx.drafter.config import FULL, SLIDING
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.drafter.rope import RopeConfig

RAW: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "block_size": 8,
    "num_target_layers": 6,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 4]},
}
"""`config.json` of `tiny_drafter()` in z-lab's packaging."""


def tiny_config(**changes: Any) -> DrafterConfig:
    """2 layers, hidden 32, 4 query heads on 2 key heads of 8, 2 taps, block 8."""
    fields: dict[str, Any] = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": 64,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(10000.0),
        "block_size": 8,
        "mask_token_id": 63,
        "target_layer_ids": (1, 4),
        "layer_types": (FULL, FULL),
        "num_target_layers": 6,
    }
    return DrafterConfig(**{**fields, **changes})


def sliding_config(window: int = 5, is_causal: bool | None = None) -> DrafterConfig:
    """One sliding and one full layer."""
    return tiny_config(layer_types=(SLIDING, FULL), sliding_window=window, is_causal=is_causal)


def tiny_drafter(config: DrafterConfig | None = None, seed: int = 0) -> Drafter:
    """Random weights, large enough that every row and every key matters."""
    config = config or tiny_config()
    drafter = SecondDrafter(config) if config.second else Drafter(config)
    keys = iter(mx.random.split(mx.random.key(seed), 200))

    def filled(array: mx.array) -> mx.array:
        noise = mx.random.normal(array.shape, key=next(keys))
        return 1 + 0.3 * noise if array.ndim == 1 else noise * array.shape[-1] ** -0.5

    drafter.update(tree_map(filled, drafter.parameters()))
    mx.eval(drafter.parameters())
    return drafter


def rows(count: int, width: int, seed: int = 1, batch: int = 1) -> mx.array:
    """Random activations `[batch, count, width]`."""
    return mx.random.normal((batch, count, width), key=mx.random.key(seed))


def taps(count: int, config: DrafterConfig, seed: int = 1) -> mx.array:
    """Random features `[1, count, T*D]`."""
    return rows(count, len(config.target_layer_ids) * config.hidden_size, seed)


def parameters(drafter: Drafter) -> dict[str, mx.array]:
    """All tensors by their names in a checkpoint."""
    return cast(dict[str, mx.array], tree_flatten(drafter.parameters(), destination={}))


def save(folder: Path, drafter: Drafter, raw: dict[str, Any], shards: int = 1) -> Path:
    """Write a checkpoint: `config.json` and safetensors, with an index if there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    weights = parameters(drafter)
    names = sorted(weights)
    index: dict[str, str] = {}
    for number in range(shards):
        mine = names[number::shards]
        file = f"model-{number + 1:05}-of-{shards:05}" if shards > 1 else "model"
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in mine})
        index |= dict.fromkeys(mine, f"{file}.safetensors")
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def by_definition(drafter: Drafter, embeddings: mx.array, context: mx.array) -> mx.array:
    """The block's rows by the words of dflash.md, section 2: no cache, one dense mask a layer.

    `context` `[1, N, T*D]` are the taps of all tokens before the anchor.
    """
    config, count, length = drafter.config, embeddings.shape[1], context.shape[1]
    h_context = drafter.hidden_norm(drafter.fc(context))
    h = embeddings
    for number, layer in enumerate(drafter.layers):
        attention, x = layer.self_attn, layer.input_layernorm(h)
        below = mx.concatenate([h_context, x], axis=1)
        keys, values = attention.keys_and_values(below, drafter.rope, 0)
        queries = attention.queries(x, drafter.rope, length)
        groups = config.num_heads // config.num_kv_heads
        keys, values = mx.repeat(keys, groups, axis=1), mx.repeat(values, groups, axis=1)
        scores = queries @ keys.swapaxes(-1, -2) * config.head_dim**-0.5
        seen = mx.array(
            [
                [_sees(config, number, length, length + i, k) for k in range(length + count)]
                for i in range(count)
            ]
        )
        weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1)
        mixed = (weights @ values).swapaxes(1, 2).reshape(1, count, -1)
        h = h + attention.o_proj(mixed)
        h = h + layer.mlp(layer.post_attention_layernorm(h))
    return drafter.norm(h)


def _sees(config: DrafterConfig, layer: int, start: int, query: int, key: int) -> bool:
    """Whether the block row at position `query` sees the key at position `key`."""
    sliding = config.layer_types[layer] == SLIDING
    causal = sliding if config.is_causal is None else config.is_causal
    if sliding and config.sliding_window is not None and query - key >= config.sliding_window:
        return False
    if sliding and config.sliding_window is not None and key - query >= config.sliding_window:
        return False
    return key < start or key <= query or not causal


def feed(drafter: Drafter, context: mx.array, sizes: Sequence[int]) -> DrafterCache:
    """A cache that got `context` in pieces of `sizes`, the rest last."""
    cache, done = drafter.make_cache(), 0
    for size in [*sizes, context.shape[1]]:
        piece = context[:, done : done + size]
        if piece.shape[1]:
            drafter.extend(piece, cache)
            mx.eval(cache.arrays)
        done += piece.shape[1]
    return cache
