"""A drafter by the ops of `kernels.fused`, on a CPU with OpenBLAS: the same sums, sooner."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..kernels.fused import FusedNorm, Turns, frequencies, swiglu
from ..kernels.products import Columns, Narrowing, by_columns, can_join, narrows
from .model import MLP, Attention, Drafter
from .rope import Position, Rope


def fuse(drafter: Drafter) -> None:
    """Store the weights of `drafter` by columns, and let it compute in fewer ops from now on."""
    joined: list[nn.Module] = []
    for layer in drafter.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for module, served, parts in (
            (attention, FusedAttention, [attention.k_proj, attention.v_proj]),
            (mlp, FusedMLP, [mlp.gate_proj, mlp.up_proj]),
        ):
            if can_join(parts):
                module.__class__ = served
                module.into = Columns(parts)
                joined += parts
    for module in drafter.modules():
        if can_join([module]) and not any(module is each for each in joined):
            if narrows(module):
                module.__class__ = Narrowing
            else:
                module.weight = by_columns(module.weight)
        elif type(module) is nn.RMSNorm and module.weight.dtype == mx.float32:
            module.__class__ = FusedNorm
    if not drafter.rope.interleaved and drafter.rope.magnitude == 1:
        drafter.rope = TableRope(drafter.rope)


class FusedAttention(Attention):
    """Attention with one product for keys and values."""

    into: Columns

    def keys_and_values(
        self, x: mx.array, rope: Rope, position: Position
    ) -> tuple[mx.array, mx.array]:
        rows = self.into(x).reshape(*x.shape[:2], 2, self.num_kv_heads, -1)
        keys, values = rows[:, :, 0], rows[:, :, 1]
        return rope(self.k_norm(keys).swapaxes(1, 2), position), values.swapaxes(1, 2)


class FusedMLP(MLP):
    """SwiGLU with one product for gate and up."""

    into: Columns

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.into(x), 2, axis=-1)
        return self.down_proj(swiglu(gate, up))


class TableRope(Rope):
    """A rope whose angles are computed once for all layers of a pass."""

    def __init__(self, rope: Rope) -> None:
        vars(self).update(vars(rope))
        if rope.wavelengths is not None:
            known = 1 / rope.wavelengths
        else:
            assert rope.base is not None
            known = frequencies(rope.base, rope.dims)
        self._turns = Turns(np.array(rope.position_scale * known))

    def __call__(self, x: mx.array, offset: Position) -> mx.array:
        return self._turns(x, offset) if isinstance(offset, int) else super().__call__(x, offset)
