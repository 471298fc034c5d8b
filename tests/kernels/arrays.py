"""Arrays that tests of ops begin with."""

from __future__ import annotations

import mlx.core as mx


def normal(*shape: int, seed: int = 0) -> mx.array:
    """Standard normal float32, the same for the same seed."""
    return mx.random.normal(shape, key=mx.random.key(seed))
