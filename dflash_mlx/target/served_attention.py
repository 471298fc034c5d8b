"""mlx-lm's attention layers over a block, by our ops.

One forward stands for those of Llama, Qwen3, Qwen3-MoE, Qwen3-Next and Qwen3.5, which differ in
two things: whether heads are normed, and whether the output is gated. It borrows the loaded layer's
weights. What it is not made for (prefill, quantized or foreign caches) takes the layer's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3, qwen3_moe, qwen3_next
from mlx_lm.models.cache import KVCache
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

from ..kernels.block_attention import block_attention
from ..kernels.metal import MAX_ROWS, MORE_ROWS, Metal
from ..kernels.projection import Projection
from ..kernels.qkv_prologue import Prologue, qkv_prologue
from .caches import SlidingCache

LAYERS = (llama.Attention, qwen3.Attention, qwen3_moe.Attention, qwen3_next.Qwen3NextAttention)


def served_attention(layer: Any, metal: Metal) -> type[nn.Module] | None:
    """A subclass of the layer's class for this instance; None if its rope is not known."""
    plain: Any = type(layer)
    gated = isinstance(layer, qwen3_next.Qwen3NextAttention)
    heads = layer.num_attention_heads if gated else layer.n_heads
    kv_heads = layer.num_key_value_heads if gated else layer.n_kv_heads
    known = _prologue(layer, heads, kv_heads)
    if known is None:
        return None
    prologue = known
    into = Projection([layer.q_proj, layer.k_proj, layer.v_proj], metal)

    class Served(plain):
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            obstacle = MORE_ROWS if x.shape[1] > MAX_ROWS else _obstacle(cache)
            if obstacle is not None:
                metal.serves("block_attention", obstacle)
                return super().__call__(x, mask, cache)
            rows, gate = _ungated(into(x), heads, prologue.dims) if gated else (into(x), None)
            position = cache.offset
            queries, keys, values = qkv_prologue(rows, position, prologue, metal=metal)
            # Write, then read, leaves the cache where it is; read, then write, would copy it whole.
            cache.update_and_fetch(keys, values)
            context = _context(cache)
            mixed = block_attention(
                queries,
                context.keys,
                context.values,
                keys,
                values,
                length=position - context.first,
                scale=self.scale,
                window=context.window,
                causal=True,
                first=context.first,
                metal=metal,
            )
            mixed = mixed.swapaxes(1, 2).flatten(2)
            return self.o_proj(mixed if gate is None else mixed * mx.sigmoid(gate))

    Served.__name__ = plain.__name__
    return Served


class _Context(NamedTuple):
    """A cache's buffers; row r stands at position `first + r`."""

    keys: mx.array
    values: mx.array
    first: int
    window: int | None


def _obstacle(cache: Any) -> str | None:
    return None if type(cache) in (KVCache, SlidingCache) else f"a {type(cache).__name__}"


def _context(cache: Any) -> _Context:
    if isinstance(cache, SlidingCache):
        assert cache.buffer is not None
        return _Context(*cache.buffer, cache.max_size)
    return _Context(cache.keys, cache.values, 0, None)


def _ungated(rows: mx.array, heads: int, dims: int) -> tuple[mx.array, mx.array]:
    """Rows `[q and gate by heads | k | v]` as `[q | k | v]`, and the gates `[B, L, H d]`."""
    both = rows[..., : 2 * heads * dims].reshape(*rows.shape[:2], heads, 2, dims)
    queries, gate = both[..., 0, :].flatten(2), both[..., 1, :].flatten(2)
    return mx.concatenate([queries, rows[..., 2 * heads * dims :]], axis=-1), gate


def _prologue(layer: Any, heads: int, kv_heads: int) -> Prologue | None:
    """How the layer prepares its heads; None if its rope is of a kind that is not known."""
    rope = layer.rope
    norms: dict[str, Any] = {}
    turned: dict[str, Any]
    if hasattr(layer, "q_norm"):
        norms = {
            "q_weight": layer.q_norm.weight,
            "k_weight": layer.k_norm.weight,
            "epsilon": layer.q_norm.eps,
        }
    dims = round(layer.scale**-2)  # its width is not a name that all of them keep
    if type(rope) is nn.RoPE:
        turned = {"base": rope.base, "position_scale": rope.scale}
    elif type(rope) is Llama3RoPE:
        turned = {"wavelengths": rope._freqs}
    elif type(rope) is YarnRoPE and rope.dims == dims:
        turned = {"wavelengths": rope._freqs, "magnitude": rope.mscale}
    else:
        return None
    return Prologue(
        heads, kv_heads, dims, rope.dims, interleaved=rope.traditional, **norms, **turned
    )
