"""mlx-lm's Gated DeltaNet (Qwen3.5) over a block, with its projections joined; and its rollback.

A recurrence has only its newest state. Where the layer would be run again over the rows that stay
(see `replay`), this keeps what the recurrence took in, and `delta_replay` computes the state from
that alone: no convolution, no outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk

from ..kernels.delta_replay import delta_replay
from ..kernels.metal import MAX_ROWS, Metal
from ..kernels.projection import Projection


@dataclass(frozen=True)
class DeltaRows:
    """What a layer took in over a block, all that its state after any row depends on.

    `convolved` `[B, W + L, C]` are the window before the block and the block's rows; the others
    are as `delta_replay` takes them.
    """

    cache: Any
    convolved: mx.array
    state: mx.array
    keys: mx.array
    values: mx.array
    gates: mx.array
    betas: mx.array
    metal: Metal

    def keep(self, rows: int) -> None:
        """Bring the cache, which is as it was before the block, behind its first `rows` rows."""
        parts = self.state, self.keys, self.values, self.gates, self.betas
        window = self.convolved.shape[1] - self.keys.shape[1]
        self.cache[0] = mx.contiguous(self.convolved[:, rows : rows + window])
        self.cache[1] = delta_replay(*parts, mx.array([rows], mx.int32), metal=self.metal)
        self.cache.advance(rows)


Note = Callable[[DeltaRows], None]


def served_delta_net(layer: Any, metal: Metal, note: Note) -> type[nn.Module]:
    """A subclass of the layer's class for this instance, which hands `note` what it took in."""
    plain: Any = type(layer)
    names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    into = Projection([getattr(layer, name) for name in names], metal)
    ends = [layer.conv_dim, layer.conv_dim + layer.value_dim]
    ends.append(ends[-1] + layer.num_v_heads)

    class Served(plain):
        def __call__(self, inputs: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            if inputs.shape[1] > MAX_ROWS or cache is None or mask is not None:
                return super().__call__(inputs, mask, cache)
            batch, rows, _ = inputs.shape
            qkv, z, b, a = mx.split(into(inputs), ends, axis=-1)
            before, state = cache[0], cache[1]
            if before is None:
                before = mx.zeros((batch, self.conv_kernel_size - 1, self.conv_dim), qkv.dtype)
            if state is None:
                shape = batch, self.num_v_heads, self.head_v_dim, self.head_k_dim
                state = mx.zeros(shape, mx.float32)
            convolved = mx.concatenate([before, qkv], axis=1)
            cache[0] = mx.contiguous(convolved[:, rows:])
            mixed = nn.silu(self.conv1d(convolved))
            q, k, v = mx.split(mixed, [self.key_dim, 2 * self.key_dim], axis=-1)
            q, k = (x.reshape(batch, rows, self.num_k_heads, self.head_k_dim) for x in (q, k))
            v = v.reshape(batch, rows, self.num_v_heads, self.head_v_dim)
            q, k = normalize_qk(q, k, inv_scale=self.head_k_dim**-0.5, eps=1e-6)
            constants = self.A_log, self.dt_bias
            out, cache[1] = gated_delta_update(q, k, v, a, b, *constants, state)
            gates, betas = compute_g(self.A_log, a, self.dt_bias), mx.sigmoid(b)
            note(DeltaRows(cache, convolved, state, k, v, gates, betas, metal))
            cache.advance(rows)
            out = self.norm(out, z.reshape(batch, rows, self.num_v_heads, self.head_v_dim))
            return self.out_proj(out.reshape(batch, rows, -1))

    Served.__name__ = plain.__name__
    return Served
