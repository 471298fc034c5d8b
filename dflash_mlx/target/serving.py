"""A target that computes its blocks with our ops: Metal kernels, or fused layers on a CPU.

As taps do, our ops enter by instance: while a pass is built, each module of a listed kind is of a
subclass of its own class. What is of no listed kind stays MLX's own, and `stock` names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3, qwen3_5, qwen3_moe, qwen3_next
from mlx_lm.models.activations import swiglu

from ..kernels.metal import Metal
from ..kernels.projection import Projection, served_linear, served_linear_layers
from .fused import fused_layers
from .served_attention import LAYERS, served_attention
from .served_delta_net import DeltaRows, served_delta_net
from .served_mlp import served_mlp
from .watch import LOCK, instances_of

_MLPS = (llama.MLP, qwen3.MLP, qwen3_moe.MLP, qwen3_next.Qwen3NextMLP)
_OTHERS = (nn.RMSNorm, nn.Embedding, nn.QuantizedEmbedding, nn.Linear, nn.QuantizedLinear)


class Serving:
    """The modules of a model that our ops serve: by `metal`, or `fused` for a CPU's OpenBLAS.

    None without either, or in other families.
    """

    def __init__(
        self, model: nn.Module, head: nn.Module, metal: Metal | None, fused: bool = False
    ) -> None:
        self._rows: dict[int, DeltaRows] = {}
        self._served: list[tuple[nn.Module, type[Any]]] = []
        self.stock: tuple[str, ...] = ()
        if fused:
            self._served = fused_layers(model, head)
        self.fused = bool(self._served)
        if metal is None:
            return
        for _, module in model.named_modules():
            served = self._subclass(module, metal)
            if served is not None:
                self._served.append((module, served))
        if self._served:
            self._served += served_linear_layers(model, metal)
            if hasattr(head, "as_linear"):
                self._served.append((head, served_linear(head, metal, "as_linear")))
            self.stock = self._left_over(model)

    def _subclass(self, module: Any, metal: Metal) -> type[nn.Module] | None:
        if type(module) in LAYERS:
            return served_attention(module, metal)
        if type(module) in _MLPS:
            into = Projection([module.gate_proj, module.up_proj], metal)
            return served_mlp(module, into, swiglu)
        if type(module) is qwen3_5.GatedDeltaNet:
            return served_delta_net(module, metal, self._note)
        return None

    def _note(self, rows: DeltaRows) -> None:
        self._rows[id(rows.cache)] = rows

    def _left_over(self, model: nn.Module) -> tuple[str, ...]:
        """The kinds of modules with weights of their own that stay MLX's."""
        served = {id(module) for module, _ in self._served}
        left = {
            type(module).__name__
            for _, module in model.named_modules()
            if id(module) not in served
            and type(module) not in _OTHERS
            and any(isinstance(value, mx.array) and value.ndim > 1 for value in module.values())
        }
        return tuple(sorted(left))

    @contextmanager
    def on(self) -> Iterator[dict[int, DeltaRows]]:
        """Compute by our ops; the dictionary fills with what a rollback of DeltaNets needs."""
        with LOCK:
            rows = self._rows = {}
            try:
                with instances_of(self._served):
                    yield rows
            finally:
                self._rows = {}
