"""Does MLX compute right here, and does a row's result depend on its company?

Every op that a round consists of, at shapes of real models, against NumPy in float64; and a block
of rows against the same rows one by one, bit for bit. The first must hold on any machine. The
second holds on a CPU with MLX's own BLAS; where it does not, a near-tie may fall the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..dtypes import dtype_name
from ..kernels.block_attention import block_attention
from ..kernels.block_matmul import Weights, block_matmul
from ..kernels.fused import Causal, grouped_attention, rms_norm
from ..kernels.metal import Metal
from ..kernels.products import Narrowing, by_columns, narrows, times_columns
from .finding import Finding

ROWS = (2, 8, 16)
"""Rows of the blocks that are looked at: other kernels serve each of them."""
WRONG = 5e-2
"""A result that is off by more than this share of the largest value is garbage, in any type."""
_EXACT = {mx.float32: 2e-5, mx.float16: 5e-3, mx.bfloat16: 3e-2}
"""What rounding explains, as a share of the largest value."""

Call = Callable[[int, int], mx.array]
"""Told the first row and the one after the last: what the op gives for them in one block."""


@dataclass(frozen=True)
class Op:
    """One op at one shape, and what its 16 rows should give, in float64."""

    name: str
    dtype: mx.Dtype
    call: Call
    expected: np.ndarray


def numeric_findings(device: str, *, small: bool = False) -> Iterator[Finding]:
    """One finding for parity, one for precision and one for row-invariance.

    `device` is the backend's, "cpu" or "metal"; `small` takes toy shapes, for tests.
    """
    errors: dict[str, float] = {}
    moved: dict[str, float] = {}
    limits: dict[str, float] = {}
    for op in ops(device, small=small):
        errors[op.name] = max(error(op, rows) for rows in (1, *ROWS))
        moved[op.name] = max(difference_of_rows(op, rows) for rows in ROWS)
        limits[op.name] = _EXACT[op.dtype]
    yield parity_finding(errors)
    yield precision_finding(errors, limits)
    yield invariance_finding(moved)


def parity_finding(errors: dict[str, float]) -> Finding:
    """Garbage at any shape is a fault of MLX, or of ours, on this device."""
    bad = {name: share for name, share in errors.items() if not share <= WRONG}
    if bad:
        worst = ", ".join(f"{name} (off by {share:.1g})" for name, share in bad.items())
        cure = "upgrade mlx and the system, and report this with `dflash-mlx doctor --json`"
        return Finding("op parity", "wrong", f"garbage from {worst}", cure, errors)
    words = f"{len(errors)} ops agree with NumPy in float64"
    return Finding("op parity", "ok", words, figures=errors)


def precision_finding(errors: dict[str, float], limits: dict[str, float]) -> Finding:
    """Whether float32 is float32: some chips keep about 11 bits in products of several rows."""
    loose = [name for name, share in errors.items() if limits[name] < share <= WRONG]
    if loose:
        bits = -np.log2(max(errors[name] for name in loose))
        words = f"only about {bits:.0f} bits are right in {', '.join(loose)}"
        cure = "set MLX_ENABLE_TF32=0 before the program starts, where MLX knows it"
        return Finding("precision", "note", words, cure)
    return Finding("precision", "ok", "as good as the types allow")


def invariance_finding(moved: dict[str, float]) -> Finding:
    """Whether k rows give the bits of k single rows."""
    apart = [name for name, distance in moved.items() if distance]
    if not apart:
        words = f"{len(moved)} ops give a row the same bits alone and in a block"
        return Finding("row-invariance", "ok", words, figures=moved)
    words = f"{len(apart)} of {len(moved)} ops give a row other last bits in a block"
    cure = "drafted text may part from plain text at a near-tie; --exact refuses such paths"
    return Finding("row-invariance", "note", words, cure, moved)


def error(op: Op, rows: int) -> float:
    """How far a block of `rows` rows is from the truth, as a share of the truth's largest value."""
    truth = op.expected[:rows]
    found = _wide(op.call(0, rows))
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - truth).max() / np.abs(truth).max())


def difference_of_rows(op: Op, rows: int) -> float:
    """How far a block's rows are from the same rows alone; 0 where every bit is equal."""
    block = op.call(0, rows)
    alone = mx.concatenate([op.call(row, row + 1) for row in range(rows)])
    return float(mx.abs(block.astype(mx.float32) - alone.astype(mx.float32)).max())


def ops(device: str, *, small: bool = False) -> Iterator[Op]:
    """Products, attention and norms: MLX's own and this project's (fused ones on a CPU)."""
    # SmolLM2's and a slice of Qwen3-8B's projections; heads, key heads and width of both.
    matrices = [(64, 96)] if small else [(1536, 576), (1024, 4096)]
    heads = [(4, 2, 32)] if small else [(9, 3, 64), (32, 8, 128)]
    metal = Metal() if device == "metal" else None
    for dtype in [mx.float32] if device == "cpu" else list(_EXACT):
        for number, (outputs, inputs) in enumerate(matrices):
            yield from _products(outputs, inputs, dtype, number, metal)
        for number, counts in enumerate(heads):
            yield from _attention(counts, 40 if small else 1000, dtype, number, metal)
    yield from _norms(96 if small else 4096)


def _products(
    outputs: int, inputs: int, dtype: mx.Dtype, seed: int, metal: Metal | None
) -> Iterator[Op]:
    shape = f"{outputs} x {inputs}, {dtype_name(dtype)}"
    rows, matrix = _normal((16, inputs), dtype, 2 * seed), _normal((outputs, inputs), dtype, 99)
    packed = mx.quantize(matrix, group_size=32, bits=4)
    stored = Weights(packed[0], packed[1], packed[2], 32, 4)
    truth = _wide(rows) @ _wide(matrix).T
    truth_4 = _wide(rows) @ _wide(mx.dequantize(*packed, group_size=32, bits=4)).T

    def product(weights: Weights, metal: Metal | None) -> Call:
        return _of_rows(partial(block_matmul, weights=weights, metal=metal), rows)

    yield Op(f"matmul {shape}", dtype, product(Weights(matrix), None), truth)
    yield Op(f"4-bit matmul {shape}", dtype, product(stored, None), truth_4)
    if metal is not None:
        yield Op(f"our matmul {shape}", dtype, product(Weights(matrix), metal), truth)
        yield Op(f"our 4-bit matmul {shape}", dtype, product(stored, metal), truth_4)
    else:
        by_order = partial(times_columns, matrix=by_columns(matrix).T)
        yield Op(f"matmul by columns {shape}", dtype, _of_rows(by_order, rows), truth)
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight = matrix
        if narrows(layer):
            layer.__class__ = Narrowing
            yield Op(f"narrowing matmul {shape}", dtype, _of_rows(layer, rows), truth)


def _of_rows(op: Callable[[mx.array], mx.array], rows: mx.array) -> Call:
    """What `op` gives for some of `rows` `[16, ...]`."""
    return lambda start, stop: op(rows[start:stop])


def _attention(
    counts: tuple[int, int, int], length: int, dtype: mx.Dtype, seed: int, metal: Metal | None
) -> Iterator[Op]:
    """Causal attention of 16 rows behind `length` keys, by MLX and by our op."""
    heads, key_heads, width = counts
    shape = f"{heads}/{key_heads} heads of {width}, {length} keys, {dtype_name(dtype)}"
    queries = _normal((1, heads, 16, width), dtype, 3 * seed)
    keys, values = (_normal((1, key_heads, length + 16, width), dtype, n) for n in (7, 8))
    scale = width**-0.5

    def stock(start: int, stop: int) -> mx.array:
        end = length + stop
        seen = keys[:, :, :end], values[:, :, :end]
        rows = queries[:, :, start:stop]
        out = mx.fast.scaled_dot_product_attention(rows, *seen, scale=scale, mask="causal")
        return out[0].swapaxes(0, 1)

    def ours(start: int, stop: int) -> mx.array:
        begin, end = length + start, length + stop
        block = keys[:, :, begin:end], values[:, :, begin:end]
        rows = queries[:, :, start:stop]
        out = block_attention(
            rows, keys, values, *block, length=begin, scale=scale, causal=True, metal=metal
        )
        return out[0].swapaxes(0, 1)

    def fused(start: int, stop: int) -> mx.array:
        end = length + stop
        seen = keys[:, :, :end], values[:, :, :end]
        visible = Causal()(stop - start, end)
        out = grouped_attention(queries[:, :, start:stop], *seen, scale, visible)
        return out[0].swapaxes(0, 1)

    truth = _true_attention(_wide(queries)[0], _wide(keys)[0], _wide(values)[0], scale)
    yield Op(f"attention, {shape}", dtype, stock, truth)
    yield Op(f"our attention, {shape}", dtype, ours, truth)
    if metal is None:
        yield Op(f"fused attention, {shape}", dtype, fused, truth)


def _true_attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float
) -> np.ndarray:
    """`[R, H, d]` of queries `[H, R, d]`, the last of keys and values `[H_kv, S, d]`."""
    groups, rows = queries.shape[0] // keys.shape[0], queries.shape[1]
    keys, values = (np.repeat(array, groups, axis=0) for array in (keys, values))
    scores = np.einsum("hrd,hkd->rhk", queries, keys) * scale
    places = np.arange(keys.shape[1])
    hidden = places[None] > (keys.shape[1] - rows + np.arange(rows))[:, None]
    scores = np.where(hidden[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    truth: np.ndarray = np.einsum("rhk,hkd->rhd", weights, values)
    return truth


def _norms(width: int) -> Iterator[Op]:
    rows, weight = _normal((16, width), mx.float32, 5), _normal((width,), mx.float32, 6)
    wide = _wide(rows)
    truth = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * _wide(weight)

    for name, norm in (("norm", mx.fast.rms_norm), ("fused norm", rms_norm)):
        call = _of_rows(partial(norm, weight=weight, eps=1e-6), rows)
        yield Op(f"{name} of {width}", mx.float32, call, truth)


def _normal(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def _wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32), np.float64)
