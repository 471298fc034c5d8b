"""Attention of a block's rows over a cached context and the block itself.

The context lies in preallocated buffers and the block's own keys and values beside them, so the
two segments are never concatenated: at 2,048 rows of context that would copy 19 MB a layer for an
8B-sized drafter, each round (and cost 10 to 40 % of the time on a CPU).
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from ..dtypes import dtype_name
from .metal import MAX_ROWS, MORE_ROWS, Metal
from .race import Contest

HEAD_DIMS = (8, 16, 32, 64, 80, 96, 128, 256)
"""Those below 64 are of tiny models, which tests run."""

MAX_GROUP = 16
SPLIT = 512
"""Keys of one threadgroup: splits begin at multiples of it, by absolute position."""

_UNBOUNDED = 2**31 - 1
_PARTS = ("queries", "context_keys", "context_values", "block_keys", "block_values")
_DTYPES = (mx.bfloat16, mx.float16, mx.float32)


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
    sinks: mx.array | None = None,
    first: int = 0,
    metal: Metal | None = None,
) -> mx.array:
    """softmax(queries [keys; block_keys]^T * scale) [values; block_values], in float32 inside.

    Shapes: queries `[B, H, L, d]`; the buffers keys and values `[B, H_kv, capacity, d]`, of which
    the first `length` rows are context, ordered by position without gaps; block_keys and
    block_values `[B, H_kv, L, d]`, which continue the context. Returns `[B, H, L, d]`.

    A key is visible iff q_pos - k_pos < `window`; inside the block only earlier rows and the row
    itself are if `causal`, and else both directions count alike (dflash.md, section 2). `sinks`
    `[H]` are logits that take their part of the softmax and give nothing (gpt-oss).

    `first` is the absolute position of the buffers' first row. It changes no result beyond
    rounding: with it, the kernel's bits for a position do not depend on where its buffer begins.

    Without `metal` the buffers must have L rows of room behind the context: the plain-MLX twin
    writes the block there, in place. What lies behind `length` is scratch.
    """
    parts = Parts(queries, keys, values, block_keys, block_values)

    def by_kernel(metal: Metal) -> mx.array:
        return _kernel(parts, length, scale, window, causal, sinks, first, metal)

    def by_twin() -> mx.array:
        return twin(*parts, length=length, scale=scale, window=window, causal=causal, sinks=sinks)

    if metal is None:
        return by_twin()
    obstacle, contest = unsupported(parts), None
    if obstacle is None:
        far = "far" if min(length, window or length) > SPLIT else "near"
        case = f"{_case(parts)}, {far}"
        contest = Contest(case, lambda: [by_kernel(metal)], lambda: [by_twin()])
    served = metal.serves("block_attention", obstacle, contest)
    return by_kernel(metal) if served else by_twin()


class Parts(NamedTuple):
    """The arrays of a call, as `block_attention` describes them."""

    queries: mx.array
    keys: mx.array
    values: mx.array
    block_keys: mx.array
    block_values: mx.array


def _case(parts: Parts) -> str:
    """What decides how fast a call is, but for the length of its context."""
    _, heads, rows, dims = parts.queries.shape
    groups = f"{heads} heads of {dims} on {parts.keys.shape[1]}"
    return f"block_attention {groups}, {dtype_name(parts.queries.dtype)}, {rows} rows"


def unsupported(parts: Parts) -> str | None:
    """Why the kernel cannot take these arrays, or None if it can."""
    heads, rows, dims = parts.queries.shape[1:]
    group = heads // parts.keys.shape[1]
    if rows > MAX_ROWS:
        return MORE_ROWS
    if dims not in HEAD_DIMS:
        return f"head dim {dims}"
    if group > MAX_GROUP:
        return f"{group} grouped heads"
    if len({part.dtype for part in parts}) > 1 or parts.queries.dtype not in _DTYPES:
        return "dtypes " + ", ".join(dtype_name(part.dtype) for part in parts)
    return None


def twin(
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
    sinks: mx.array | None = None,
) -> mx.array:
    """`block_attention` in plain MLX: the block goes behind the context, in place."""
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
        sinks=None if sinks is None else sinks.astype(queries.dtype),
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


def row_tiles(total: int, dims: int) -> tuple[int, int, int]:
    """How `total` query rows that share a KV head are spread over threads.

    Returns tiles of 8 rows a SIMD-group, SIMD-groups a threadgroup, and threadgroups. Few rows
    spread over many SIMD-groups; many fill the registers, at 64 sums a lane.
    """
    most = {96: 3, 128: 2, 256: 1}.get(dims, 4)
    needed = -(-total // 8)
    tiles = min(n for n in range(1, most + 1) if n == most or needed <= 8 * n)
    groups = -(-needed // (8 * tiles))
    return tiles, min(8, -(-needed // tiles)), groups


def _kernel(
    parts: Parts,
    length: int,
    scale: float,
    window: int | None,
    causal: bool,
    sinks: mx.array | None,
    first: int,
    metal: Metal,
) -> mx.array:
    queries, keys = parts.queries, parts.keys
    (batch, heads, rows, dims), (_, kv_heads, capacity, _) = queries.shape, keys.shape
    dtype, group, shown = queries.dtype, heads // kv_heads, window or _UNBOUNDED
    begin = first + max(0, length - shown + 1)
    splits = (first + length + rows - 1) // SPLIT - begin // SPLIT + 1
    direct = splits == 1
    tiles, simdgroups, groups = row_tiles(group * rows, dims)
    settings = mx.array([length, rows, capacity, first, shown, causal, group, kv_heads], mx.int32)
    drains = settings if sinks is None else sinks
    choices: list[tuple[str, object]] = [("T", dtype), ("D", dims), ("SINKS", sinks is not None)]
    out, stats = metal.kernel(
        "block_attention",
        [*_PARTS, "settings", "scale", "sinks"],
        ["rows_out", "tops_and_sums"],
        "fragments.h",
        "attention.h",
    )(
        inputs=[*parts, settings, mx.array([scale], mx.float32), drains],
        template=[
            *choices,
            ("SPLIT", SPLIT),
            ("TILES", tiles),
            ("DIRECT", direct),
            ("Out", dtype if direct else mx.float32),
        ],
        grid=(32 * simdgroups * splits, groups, batch * kv_heads),
        threadgroup=(32 * simdgroups, 1, 1),
        output_shapes=[
            queries.shape if direct else (batch * heads * rows, splits, dims),
            (8,) if direct else (batch * heads * rows, splits, 2),
        ],
        output_dtypes=[dtype if direct else mx.float32, mx.float32],
    )
    if direct:
        return out
    (combined,) = metal.kernel(
        "block_attention_combine",
        ["partials", "tops_and_sums", "settings", "sinks"],
        ["rows_out"],
        "fragments.h",
        "attention.h",
    )(
        inputs=[out, stats, settings, drains],
        template=choices,
        grid=(32, batch * heads * rows, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[queries.shape],
        output_dtypes=[dtype],
    )
    return combined
