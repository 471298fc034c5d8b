"""MLX's floating point types, and their names as configs and statistics spell them."""

from __future__ import annotations

import mlx.core as mx

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
"""The types that weights are kept and computed in."""


def dtype_name(dtype: mx.Dtype) -> str:
    """`mx.float32` -> "float32"."""
    return str(dtype).removeprefix("mlx.core.")
