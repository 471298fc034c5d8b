"""DFlash 2's convolution: a short causal filter over a block, part fixed and part computed."""

from __future__ import annotations

import mlx.core as mx


def dynamic_convolution(x: mx.array, fixed: mx.array, dynamic: mx.array) -> mx.array:
    """y[t, c] = sum over j of (fixed[j, c] + dynamic[t, j, c // group]) * x[t - j, c].

    Shapes: x `[B, L, D]`; fixed `[K, D]`; dynamic `[B, L, K, D / group]`, one weight for each
    group of neighbouring channels. Rows before row 0, the anchor's, are zero (dflash.md,
    section 5). Returns `[B, L, D]` in the type of `x`.
    """
    batch, length, width = x.shape
    taps, groups = dynamic.shape[2:]
    grouped = x.reshape(batch, length, groups, width // groups)
    filters = fixed.astype(x.dtype).reshape(taps, groups, width // groups)
    mixed = mx.zeros_like(grouped)
    for back in range(min(taps, length)):
        earlier = mx.pad(grouped[:, : length - back], [(0, 0), (back, 0), (0, 0), (0, 0)])
        mixed = mixed + (filters[back] + dynamic[:, :, back, :, None]) * earlier
    return mixed.reshape(x.shape)
