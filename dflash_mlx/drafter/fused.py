"""A drafter by the ops of `kernels.fused`, on a CPU with OpenBLAS: the same sums, sooner."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..kernels.fused import Columns, by_columns, can_join, swiglu
from .model import MLP, Drafter


def fuse(drafter: Drafter) -> None:
    """Store the weights of `drafter` by columns, and join each layer's gate and up projections."""
    joined: list[nn.Module] = []
    for layer in drafter.layers:
        both = [layer.mlp.gate_proj, layer.mlp.up_proj]
        if can_join(both):
            layer.mlp.__class__ = FusedMLP
            layer.mlp.join()
            joined += both
    for module in drafter.modules():
        if can_join([module]) and not any(module is each for each in joined):
            module.weight = by_columns(module.weight)


class FusedMLP(MLP):
    """SwiGLU with one product for gate and up."""

    def join(self) -> None:
        """Join the projections: they are called no more."""
        self._into = Columns([self.gate_proj, self.up_proj])

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self._into(x), 2, axis=-1)
        return self.down_proj(swiglu(gate, up))
