"""Float64 by NumPy, and how near a kernel must come to it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

TOLERANCE = {mx.float32: 4e-6, mx.float16: 2**-10, mx.bfloat16: 2**-7}
"""Relative to the largest value: two roundings of the result to its type; sums are in float32."""


def wide(array: mx.array) -> np.ndarray:
    """As float64; every type of ours fits."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def close(got: mx.array, expected: np.ndarray) -> bool:
    """Whether `got` is `expected` within its type's tolerance."""
    worst = np.abs(wide(got) - expected).max()
    return bool(worst <= TOLERANCE[got.dtype] * np.abs(expected).max())


def same_bits(one: mx.array, other: mx.array) -> bool:
    """Whether two arrays are equal, NaN and the sign of zero included."""
    word = mx.uint32 if one.dtype == mx.float32 else mx.uint16
    return bool(mx.array_equal(one.view(word), other.view(word)))
