"""Linear layers that read the same rows, multiplied as one matrix.

A layer's q, k and v, or its gate and up, are three and two launches of small matrices; side by side
they are one, which fills a GPU better. The layers are joined when they are loaded, and their own
weights become views of what is joined, so that nothing is in memory twice and MLX's own forward
still runs: it serves prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from . import block_matmul
from .block_matmul import Weights
from .metal import Metal

_ARRAYS = ("weight", "scales", "biases", "bias")


class Projection:
    """x `[..., K]` -> `[..., N]`: the outputs of `layers` side by side.

    Neighbours that are stored alike become one matrix. Where the kernel cannot take a call, or
    does not know how a layer is stored, the layers themselves are called: they are the twin.
    """

    def __init__(self, layers: Sequence[nn.Module], metal: Metal):
        self._parts = [_Part(list(alike), metal) for _, alike in groupby(layers, _kind)]

    def __call__(self, x: mx.array) -> mx.array:
        return _side_by_side([part(x) for part in self._parts])

    def product(self, x: mx.array) -> mx.array | None:
        """As a call, or None unless the kernel takes all of it."""
        products = [part.product(x) for part in self._parts]
        given = [product for product in products if product is not None]
        return _side_by_side(given) if len(given) == len(products) else None


class _Part:
    """Layers of one kind, joined."""

    def __init__(self, layers: Sequence[nn.Module], metal: Metal):
        self._layers = layers
        self._metal = metal
        self._weights = Weights.of(layers[0])
        self._bias = layers[0].get("bias")
        if len(layers) > 1:
            self._weights, self._bias = _joined(layers)

    def __call__(self, x: mx.array) -> mx.array:
        product = self.product(x)
        if product is not None:
            return product
        return _side_by_side([layer(x) for layer in self._layers])

    def product(self, x: mx.array) -> mx.array | None:
        if self._weights is None:
            kind = getattr(self._layers[0], "mode", type(self._layers[0]).__name__)
            self._metal.serves("block_matmul", f"weights in {kind}")
            return None
        if not block_matmul.served(x, self._weights, self._metal):
            return None
        product = block_matmul.launch(x, self._weights, self._metal)
        return product if self._bias is None else product + self._bias


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    """What must be equal in layers that can be joined: how they are stored."""
    weights = Weights.of(layer)
    if weights is None:
        return (id(layer),)
    return weights.matrix.dtype, weights.shape[1], *weights[3:], "bias" in layer


def served_linear_layers(model: nn.Module, metal: Metal) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Each linear layer in `model`, with a subclass of its class for this instance alone.

    To be made after joins, so that the layers' weights are those that stay.
    """
    return [
        (layer, served_linear(layer, metal, "__call__"))
        for _, layer in model.named_modules()
        if type(layer) in (nn.Linear, nn.QuantizedLinear)
    ]


def served_linear(layer: nn.Module, metal: Metal, method: str) -> type[nn.Module]:
    """A subclass of the layer's class, whose `method` is by kernel where that can be.

    `method` is `__call__` of a linear layer, `as_linear` of an embedding table.
    """
    whole, plain = Projection([layer], metal), type(layer)

    def call(self: nn.Module, x: mx.array) -> mx.array:
        product = whole.product(x)
        return getattr(plain, method)(self, x) if product is None else product

    return type(plain.__name__, (plain,), {method: call})


def _joined(layers: Sequence[nn.Module]) -> tuple[Weights, mx.array | None]:
    """One matrix and bias of layers of a kind, whose arrays become views of it."""
    first = layers[0]
    names = [name for name in _ARRAYS if first.get(name) is not None]
    whole = {name: mx.concatenate([layer[name] for layer in layers]) for name in names}
    mx.eval(whole)
    begin = 0
    for layer in layers:
        end = begin + layer.weight.shape[0]
        for name in names:
            layer[name] = whole[name][begin:end]
        mx.eval([layer[name] for name in names])
        begin = end
    settings = [first.group_size, first.bits] if "scales" in whole else []
    weights = Weights(whole["weight"], whole.get("scales"), whole.get("biases"), *settings)
    return weights, whole.get("bias")


def _side_by_side(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
