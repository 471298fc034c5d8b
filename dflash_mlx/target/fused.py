"""mlx-lm's attention and MLP layers by the ops of `kernels.fused`, on a CPU with OpenBLAS.

Quantized caches, and masks of a window, are left to mlx-lm's attention.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama, qwen2, qwen3, qwen3_moe
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache
from mlx_lm.models.rope_utils import Llama3RoPE

from ..kernels.fused import Causal, FusedNorm, Turns, frequencies, grouped_attention, swiglu
from ..kernels.products import (
    Columns,
    FusedHead,
    FusedTable,
    Narrowing,
    by_columns,
    can_join,
    narrows,
)
from .served_mlp import served_mlp

Served = tuple[nn.Module, type[nn.Module]]

_ATTENTIONS = (llama.Attention, qwen2.Attention, qwen3.Attention, qwen3_moe.Attention)
_MLPS = (llama.MLP, qwen2.MLP, qwen3.MLP, qwen3_moe.MLP)
_HEADS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: FusedHead, nn.Embedding: FusedTable}


def fused_layers(model: nn.Module, head: nn.Module) -> list[Served]:
    """The layers of `model` that our ops serve, each with a subclass of its class for it alone.

    Their wide weights and those of `head` are stored by columns from now on; where no layer can be
    served, nothing is changed.
    """
    causal, turns = Causal(), dict[bytes, Turns]()
    served: list[Served] = []
    for _, module in model.named_modules():
        if type(module) in _ATTENTIONS and can_join([module.q_proj, module.k_proj, module.v_proj]):
            known, turn = _frequencies(module), None
            if known is not None:
                turn = turns.setdefault(known.tobytes(), Turns(known))
            served.append((module, fused_attention(module, causal, turn)))
        elif type(module) in _MLPS and can_join([module.gate_proj, module.up_proj]):
            into = Columns([module.gate_proj, module.up_proj])
            served.append((module, served_mlp(module, into, swiglu)))
    if served:
        for layer in _alone(served):
            if narrows(layer):
                served.append((layer, Narrowing))
            elif type(layer) is nn.Linear:
                layer.weight = by_columns(layer.weight)
        if type(head) in _HEADS:
            head.weight = by_columns(head.weight)
            served.append((head, _HEADS[type(head)]))
        norms = [module for _, module in model.named_modules() if type(module) is nn.RMSNorm]
        served += [(norm, FusedNorm) for norm in norms]
    return served


def _alone(served: list[Served]) -> list[nn.Module]:
    """The layers that nothing is joined with: what attentions and MLPs end with."""
    return [getattr(module, "o_proj", None) or module.down_proj for module, _ in served]


def _frequencies(layer: Any) -> np.ndarray[Any, Any] | None:
    """Radians a position of each pair of channels, where `Turns` can take the layer's rope."""
    rope = layer.rope
    if getattr(rope, "traditional", True) or rope.dims != round(layer.scale**-2):
        return None
    if type(rope) is nn.RoPE:
        return np.array(rope.scale * frequencies(rope.base, rope.dims))
    return np.array(1 / rope._freqs) if type(rope) is Llama3RoPE else None


def fused_attention(layer: Any, causal: Causal, turns: Turns | None) -> type[nn.Module]:
    """A subclass of the attention's class for this instance; without `turns` its rope is MLX's."""
    plain: Any = type(layer)
    heads, kv_heads = layer.n_heads, layer.n_kv_heads
    into = Columns([layer.q_proj, layer.k_proj, layer.v_proj])

    class Served(plain):
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            rows = into(x).reshape(*x.shape[:2], heads + 2 * kv_heads, -1)
            turned, values = rows[:, :, :-kv_heads], rows[:, :, -kv_heads:].swapaxes(1, 2)
            if "q_norm" in self:
                queries, keys = turned[:, :, :heads], turned[:, :, heads:]
                turned = mx.concatenate([self.q_norm(queries), self.k_norm(keys)], axis=2)
            turned, offset = turned.swapaxes(1, 2), 0 if cache is None else cache.offset
            if turns is None or not isinstance(offset, int):
                turned = self.rope(turned, offset=offset)
            else:
                turned = turns(turned, offset)
            queries, keys = turned[:, :heads], turned[:, heads:]
            if cache is not None:
                keys, values = cache.update_and_fetch(keys, values)
            if _is_of_batch(mask) and isinstance(keys, mx.array):
                mixed = grouped_attention(queries, keys, values, self.scale, mask)
            elif type(cache) is KVCache and not isinstance(mask, mx.array):
                seen = None if mask is None else causal(x.shape[1], keys.shape[2])
                mixed = grouped_attention(queries, keys, values, self.scale, seen)
            else:
                mixed = scaled_dot_product_attention(
                    queries, keys, values, cache=cache, scale=self.scale, mask=mask
                )
            return self.o_proj(mixed.swapaxes(1, 2).flatten(2))

    Served.__name__ = plain.__name__
    return Served


def _is_of_batch(mask: Any) -> bool:
    """Whether a mask tells of each sequence of a batch what it sees: bool `[B, 1, L, n]`."""
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.ndim == 4
