"""The exponential of a softmax, for CPUs: a third of the time where MLX compiles loops.

Half of the head's time on a CPU is `exp`: MLX computes it a number at a time there (24 ns each,
22 million a step for 448 rows of a vocabulary of 49,152). A polynomial and eight squarings in one
compiled loop use the vector units: 0.21 s instead of 0.56 s, measured on 2 cores of an AMD EPYC.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Exponential = Callable[[mx.array, mx.array], mx.array]
"""`(x, most) -> exp(x - most)` for float32 x no larger than `most`."""

_SQUARINGS = 8
_LEAST = -80.0
"""exp of less is nothing in float32, beside a softmax's largest 1."""


def plain(x: mx.array, most: mx.array) -> mx.array:
    """MLX's own."""
    return mx.exp(x - most)


def _by_squaring(x: mx.array, most: mx.array) -> mx.array:
    """exp(x) = exp(x / 256)^256, to about 2e-5 of its value: enough for a gradient."""
    small = mx.maximum(x - most, _LEAST) / 2**_SQUARINGS
    power = 1 + small * (1 + small * (1 / 2 + small * (1 / 6 + small * (1 / 24 + small / 120))))
    for _ in range(_SQUARINGS):
        power = power * power
    return power


def exponential(device: str, compiled: bool) -> Exponential:
    """The faster of the two on this device ("cpu" or another); `compiled` is whether MLX fuses."""
    return mx.compile(_by_squaring) if device == "cpu" and compiled else plain
