"""The DFlash drafter (arXiv 2602.06036): a few layers that draft a whole block in one pass.

Two kinds of rows enter. *Context rows* are the target's features of tokens that are already
decided: they give keys and values, nothing else. *Block rows* are the anchor's embedding and mask
embeddings: they alone pass through the layers, and row k predicts the token at anchor + k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from ..kernels.metal import Metal
from .cache import DrafterCache
from .config import DrafterConfig
from .rope import Position, Rope


class ContextRows(Protocol):
    """The context as one layer sees it: a cache when drafting, whole sequences when training."""

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        position: Any,
        *,
        scale: float,
        window: int | None,
        causal: bool,
    ) -> mx.array:
        """Attention `[B, H, L, d]` of a block at `position` (a `Position`): context and itself."""


class Attention(nn.Module):
    """Block rows look at the context and at one another."""

    def __init__(self, config: DrafterConfig, layer: int):
        super().__init__()
        hidden, dims, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.scale = dims**-0.5
        self.window, self.causal = config.window(layer), config.causal(layer)
        self.q_proj = nn.Linear(hidden, self.num_heads * dims, bias=bias)
        self.k_proj = nn.Linear(hidden, self.num_kv_heads * dims, bias=bias)
        self.v_proj = nn.Linear(hidden, self.num_kv_heads * dims, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * dims, hidden, bias=bias)
        self.q_norm = nn.RMSNorm(dims, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dims, eps=config.rms_norm_eps)

    def queries(self, x: mx.array, rope: Rope, position: Position) -> mx.array:
        """`[B, L, D]` -> `[B, H, L, d]`, standing at `position` and after."""
        split = self.q_proj(x).reshape(*x.shape[:2], self.num_heads, -1)
        return rope(self.q_norm(split).swapaxes(1, 2), position)

    def keys_and_values(
        self, x: mx.array, rope: Rope, position: Position
    ) -> tuple[mx.array, mx.array]:
        """`[B, S, D]` -> two of `[B, H_kv, S, d]`, standing at `position` and after."""
        keys = self.k_proj(x).reshape(*x.shape[:2], self.num_kv_heads, -1)
        values = self.v_proj(x).reshape(*x.shape[:2], self.num_kv_heads, -1)
        return rope(self.k_norm(keys).swapaxes(1, 2), position), values.swapaxes(1, 2)

    def heads(
        self, x: mx.array, rope: Rope, position: Position
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values of a block's rows."""
        return self.queries(x, rope, position), *self.keys_and_values(x, rope, position)

    def __call__(self, x: mx.array, rope: Rope, cache: ContextRows, position: Position) -> mx.array:
        """`[B, L, D]` -> `[B, L, D]`: the block at `position`, behind the cached context."""
        queries, keys, values = self.heads(x, rope, position)
        mixed = cache.attend(
            queries,
            keys,
            values,
            position,
            scale=self.scale,
            window=self.window,
            causal=self.causal,
        )
        return self.o_proj(mixed.swapaxes(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        hidden, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual around it."""

    def __init__(self, config: DrafterConfig, layer: int):
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, h: mx.array, rope: Rope, cache: ContextRows, position: Position) -> mx.array:
        h = h + self.self_attn(self.input_layernorm(h), rope, cache, position)
        return h + self.mlp(self.post_attention_layernorm(h))


class Drafter(nn.Module):
    """Without embedding and head, mostly: the target's own serve both.

    Shapes: B batch, S new context rows, L block rows, D hidden size, T taps. Inputs are cast to
    `dtype`, the one type of the drafter's floats, so that nothing is promoted on the way. Without
    `metal` all of it is plain MLX; see `serving`.
    """

    metal: Metal | None = None

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(
            len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False
        )
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DrafterLayer(config, layer) for layer in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rope = Rope(config.rope, config.head_dim)
        if config.own_head:
            self.lm_head = nn.Linear(config.hidden_size, len(config.draft_vocab or ()), bias=False)

    @property
    def dtype(self) -> mx.Dtype:
        """float32, bfloat16 or float16."""
        return self.norm.weight.dtype

    def make_cache(self) -> DrafterCache:
        """An empty context."""
        windows = [self.config.window(i) for i in range(self.config.num_layers)]
        return DrafterCache(windows, self.metal)

    def extend(self, taps: mx.array, cache: DrafterCache) -> None:
        """Append context rows to the cache.

        `taps` `[B, S, T*D]` are the target's features of the next S decided tokens: the outputs
        of its layers `target_layer_ids`, side by side. They are projected and normed once for all
        layers, and pass no `input_layernorm`.
        """
        self._check("taps", taps, len(self.config.target_layer_ids) * self.config.hidden_size)
        if taps.shape[1] == 0:
            return
        context = self.hidden_norm(self.fc(taps.astype(self.dtype)))
        for layer, rows in zip(self.layers, cache.layers, strict=True):
            keys, values = layer.self_attn.keys_and_values(context, self.rope, cache.length)
            rows.write(cache.length, keys, values)
        cache.length += taps.shape[1]

    def block(self, embeddings: mx.array, cache: DrafterCache) -> mx.array:
        """One pass over a block that stands right behind the context; the cache is left as it was.

        `embeddings` `[B, L, D]`: anchor and masks through the target's embedding, already scaled.
        Returns `[B, L, D]`, rows after the final norm; row k >= 1 predicts the token at anchor + k.
        """
        self._check("embeddings", embeddings, self.config.hidden_size)
        h = embeddings.astype(self.dtype)
        for layer, rows in zip(self.layers, cache.layers, strict=True):
            h = layer(h, self.rope, rows, cache.length)
        return self.norm(h)

    def hidden_states(self, embeddings: mx.array, taps: mx.array, cache: DrafterCache) -> mx.array:
        """`extend` by `taps`, then `block`: one round. Afterwards the cache holds context only."""
        self.extend(taps, cache)
        return self.block(embeddings, cache)

    def logits(self, hidden: mx.array, head: Callable[[mx.array], mx.array]) -> mx.array:
        """Logits `[..., V]` of the block's hidden rows through the target's `head`."""
        logits = head(hidden) * self.config.output_multiplier
        cap = self.config.logit_softcap
        return logits if cap is None else mx.tanh(logits / cap) * cap

    def _check(self, name: str, rows: mx.array, width: int) -> None:
        if rows.ndim != 3 or rows.shape[2] != width:
            raise ValueError(f"{name} must be [batch, rows, {width}]; they are {rows.shape}.")
