"""Attention of a block's rows over a cached context and the block itself.

The context lies in preallocated buffers and the block's own keys and values beside them, so the
two segments are never concatenated: at 2,048 rows of context that would copy 19 MB a layer for an
8B-sized drafter, each round (and cost 10 to 40 % of the time on a CPU).
"""

from __future__ import annotations

import mlx.core as mx


def block_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    block_keys: mx.array,
    block_values: mx.array,
    *,
    length: int,
    scale: float,
    window: int | None = None,
    causal: bool = False,
) -> mx.array:
    """softmax(queries [keys; block_keys]^T * scale) [values; block_values], in float32 inside.

    Shapes: queries `[B, H, L, d]`; the buffers keys and values `[B, H_kv, capacity, d]`, of which
    the first `length` rows are context, ordered by position without gaps; block_keys and
    block_values `[B, H_kv, L, d]`, which continue the context. Returns `[B, H, L, d]`.

    A key is visible iff q_pos - k_pos < `window`; inside the block only earlier rows and the row
    itself are if `causal`, and else both directions count alike (dflash.md, section 2).

    The buffers must have L rows of room behind the context: this plain-MLX twin writes the block
    there, in place, and attends to one contiguous segment. What lies behind `length` is scratch.
    """
    rows = block_keys.shape[2]
    stop = length + rows
    keys[..., length:stop, :] = block_keys
    values[..., length:stop, :] = block_values
    start = 0 if window is None else max(0, length - window + 1)
    return mx.fast.scaled_dot_product_attention(
        queries,
        keys[..., start:stop, :],
        values[..., start:stop, :],
        scale=scale,
        mask=visible(rows, length - start, window, causal),
    )


def visible(rows: int, context: int, window: int | None, causal: bool) -> mx.array | None:
    """Which of `context` + `rows` keys each row of the block sees: bool, or None for all."""
    if not causal and (window is None or context + rows <= window):
        return None
    query = mx.arange(context, context + rows)[:, None]
    ahead = mx.arange(context + rows)[None] - query
    if window is None:
        return ahead <= 0
    return (ahead > -window) & (ahead < (1 if causal else window))
