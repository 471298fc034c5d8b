"""A drafter that computes with Metal kernels.

`model.py` says what a drafter computes, in plain MLX, and training goes through that. To serve, its
modules become, instance by instance, what is here: the same sums in fewer launches.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..kernels.metal import Metal
from ..kernels.projection import Projection, served_linear_layers
from ..kernels.qkv_prologue import Heads, Prologue, qkv_prologue
from .model import MLP, Attention, Drafter
from .rope import Position, Rope


def serve(drafter: Drafter, metal: Metal) -> None:
    """Let `drafter` compute with `metal` from now on; gradients no longer go through it."""
    drafter.metal = metal
    for layer in drafter.layers:
        layer.self_attn.__class__ = ServedAttention
        layer.self_attn.begin(drafter.rope, metal)
        layer.mlp.__class__ = ServedMLP
        layer.mlp.begin(metal)
    for linear, served in served_linear_layers(drafter, metal):
        linear.__class__ = served


class ServedAttention(Attention):
    """Attention with one projection for queries, keys and values, and a fused prologue."""

    def begin(self, rope: Rope, metal: Metal) -> None:
        """Join the projections."""
        self.metal = metal
        self.prologue = Prologue(
            heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            dims=rope.dims,
            rotated=rope.dims,
            base=rope.base,
            wavelengths=rope.wavelengths,
            interleaved=rope.interleaved,
            position_scale=rope.position_scale,
            magnitude=rope.magnitude,
            q_weight=self.q_norm.weight,
            k_weight=self.k_norm.weight,
            epsilon=self.q_norm.eps,
        )
        self.into = Projection([self.q_proj, self.k_proj, self.v_proj], metal)

    def heads(self, x: mx.array, rope: Rope, position: Position) -> Heads:
        """Queries, keys and values of a block's rows."""
        assert isinstance(position, int)
        return qkv_prologue(self.into(x), position, self.prologue, metal=self.metal)


class ServedMLP(MLP):
    """SwiGLU with one projection for gate and up."""

    def begin(self, metal: Metal) -> None:
        """Join the projections."""
        self.into = Projection([self.gate_proj, self.up_proj], metal)

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.into(x), 2, axis=-1)
        return self.down_proj(nn.silu(gate) * up)
