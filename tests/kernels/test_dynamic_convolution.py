"""DFlash 2's convolution is its formula, and looks back only."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.kernels.dynamic_convolution import dynamic_convolution


@given(length=st.integers(1, 6), taps=st.integers(1, 4), group=st.sampled_from([1, 2, 6]))
def test_it_is_its_formula(length: int, taps: int, group: int) -> None:
    random = np.random.default_rng(length * 10 + taps)
    width = 6
    x = random.standard_normal((2, length, width))
    fixed = random.standard_normal((taps, width))
    dynamic = random.standard_normal((2, length, taps, width // group))
    expected = np.zeros_like(x)
    for b, t, c, j in np.ndindex(2, length, width, taps):
        if j <= t:
            expected[b, t, c] += (fixed[j, c] + dynamic[b, t, j, c // group]) * x[b, t - j, c]
    arrays = (mx.array(array.astype(np.float32)) for array in (x, fixed, dynamic))
    assert np.allclose(np.array(dynamic_convolution(*arrays)), expected, atol=1e-5)
