"""Between MLX's arrays and NumPy's: the same bytes, bfloat16 as its 16 bits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def to_numpy(array: mx.array) -> np.ndarray:
    """The array's elements in row order; bfloat16 comes as uint16."""
    if array.dtype == mx.bfloat16:
        array = (
            array.view(mx.uint16) if array.ndim else array.reshape(1).view(mx.uint16).reshape(())
        )
    return np.array(array)


def to_mlx(array: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """The inverse: `array` has the bytes of `dtype`."""
    if dtype == mx.bfloat16:
        flat = mx.array(np.ascontiguousarray(array).reshape(-1)).view(mx.bfloat16)
        return flat.reshape(array.shape)
    return mx.array(array)


def is_row_contiguous(array: mx.array) -> bool:
    """Whether MLX would pass the array to a kernel without a copy; `array` must be evaluated."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16) if array.ndim else mx.zeros((1,), mx.uint16)
        mx.eval(array)
    view: Any = array  # MLX's arrays are buffers; their stubs do not say so
    return memoryview(view).c_contiguous
