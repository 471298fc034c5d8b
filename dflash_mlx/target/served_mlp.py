"""mlx-lm's gated MLPs with gate and up in one product, by whichever of our ops multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn


def served_mlp(
    layer: Any,
    into: Callable[[mx.array], mx.array],
    swiglu: Callable[[mx.array, mx.array], mx.array],
) -> type[nn.Module]:
    """A subclass of the MLP's class for this instance; `into` gives gate and up side by side."""
    plain: Any = type(layer)

    class Served(plain):
        def __call__(self, x: mx.array) -> mx.array:
            gate, up = mx.split(into(x), 2, axis=-1)
            return self.down_proj(swiglu(gate, up))

    Served.__name__ = plain.__name__
    return Served
