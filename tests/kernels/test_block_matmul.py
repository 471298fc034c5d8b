"""The matmul kernel: near float64, the same bits at every number of rows, each weight read once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import MODELS, Simulator
from simulator.stock import Stock

from dflash_mlx.kernels.block_matmul import WIDE, Weights, block_matmul, twin
from dflash_mlx.kernels.metal import Metal

from .oracle import close, same_bits, wide

pytestmark = pytest.mark.simulator


def make(outputs: int, inner: int, dtype: mx.Dtype, bits: int = 0, group_size: int = 32) -> Weights:
    """Random weights, quantized if `bits` says so."""
    mx.random.seed(outputs + inner)
    matrix = mx.random.normal((outputs, inner)).astype(dtype)
    if not bits:
        return Weights(matrix)
    return Weights(*mx.quantize(matrix, group_size, bits), group_size, bits)


def matrix64(weights: Weights) -> np.ndarray:
    """W in float64, unpacked by hand."""
    matrix, scales, biases, group_size, bits = weights
    if scales is None or biases is None:
        return wide(matrix)
    per_word = 32 // bits
    words = np.array(matrix)[:, :, None] >> (np.arange(per_word, dtype=np.uint32) * bits)
    numbers = (words & (2**bits - 1)).reshape(len(words), -1).astype(np.float64)
    return numbers * wide(scales).repeat(group_size, 1) + wide(biases).repeat(group_size, 1)


def rows(count: int, inner: int, dtype: mx.Dtype) -> mx.array:
    return mx.random.normal((count, inner), key=mx.random.key(count)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "weights", "count"),
    [
        (mx.bfloat16, make(72, 128, mx.bfloat16, 4, 64), 8),
        (mx.float16, make(12, 96, mx.float16, 4, 32), 16),
        (mx.float32, make(64, 256, mx.float32, 4, 128), 7),
        (mx.float32, make(9, 64, mx.bfloat16, 8, 64), 3),  # activations of M1 and M2
        (mx.bfloat16, make(24, 160, mx.bfloat16, 8, 32), 32),
        (mx.float16, make(16, 640, mx.float16, 8, 128), 1),  # more than one chunk of k
        (mx.bfloat16, make(40, 576, mx.bfloat16), 5),
        (mx.float16, make(17, 32, mx.float16), 17),
        (mx.float32, make(8, 64, mx.float32), 2),
    ],
)
def test_every_type_and_quantization_is_near_float64(
    dtype: mx.Dtype, weights: Weights, count: int, metal: Metal
) -> None:
    x = rows(count, weights.shape[1], dtype)
    got = block_matmul(x, weights, metal=metal)
    expected = wide(x) @ matrix64(weights).T
    assert got.dtype == dtype
    assert close(got, expected)
    assert close(twin(x.astype(mx.float32), weights), expected)


@settings(max_examples=15)
@given(
    count=st.integers(1, 8),
    outputs=st.sampled_from([8, 9, 63, 64, 65, 130]),
    blocks=st.sampled_from([1, 2, 15, 16, 17]),
)
def test_any_shape_is_near_float64(count: int, outputs: int, blocks: int, metal: Metal) -> None:
    weights = make(outputs, 32 * blocks, mx.float32, 4, 32)
    x = rows(count, 32 * blocks, mx.float32)
    expected = wide(x) @ matrix64(weights).T
    assert close(block_matmul(x[None], weights, metal=metal)[0], expected)


def test_many_outputs_take_two_panels_a_threadgroup(metal: Metal, simulator: Simulator) -> None:
    weights = make(WIDE, 32, mx.bfloat16, 4, 32)
    x = rows(2, 32, mx.bfloat16)
    with simulator.counting() as counts:
        got = block_matmul(x, weights, metal=metal)
    assert close(got, wide(x) @ matrix64(weights).T)
    assert counts.buffers["rows_in"].read_bytes == x.nbytes * WIDE // 128


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bits", [0, 4])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    model: str, bits: int, metals: dict[str, Metal]
) -> None:
    weights = make(16, 128, mx.bfloat16, bits, 64)
    x = rows(32, 128, mx.bfloat16)
    alone = [block_matmul(x[m : m + 1], weights, metal=metals[model]) for m in range(32)]
    counts = range(2, 33) if model == "default" else (8, 9, 32)
    for count in counts:
        together = block_matmul(x[:count], weights, metal=metals[model])
        assert same_bits(together, mx.concatenate(alone[:count]))


@pytest.mark.parametrize(("bits", "group_size"), [(0, 32), (4, 64), (8, 32)])
@pytest.mark.parametrize("count", [1, 8, 16])
def test_each_weight_is_read_once_for_all_rows(
    bits: int, group_size: int, count: int, metal: Metal, simulator: Simulator
) -> None:
    weights = make(64, 256, mx.bfloat16, bits, group_size)
    with simulator.counting() as counts:
        block_matmul(rows(count, 256, mx.bfloat16), weights, metal=metal)
    read = sum(counts.buffers[name].read_bytes for name in ("weights", "scales", "biases"))
    assert read == sum(array.nbytes for array in weights[:3] if isinstance(array, mx.array))
    assert counts.launches == 1


@pytest.mark.parametrize("count", [2, 4])
def test_where_stock_multiplies_row_by_row_it_reads_that_many_times_more(
    count: int, metal: Metal, simulator: Simulator
) -> None:
    weights = make(64, 512, mx.bfloat16, 4, 64)
    x = rows(count, 512, mx.bfloat16)
    _, stock = Stock(simulator.toolchain).quantized_matmul(
        "affine_qmv_fast",
        x,
        weights[:3],
        group_size=64,
        bits=4,
    )
    with simulator.counting() as ours:
        block_matmul(x, weights, metal=metal)
    read = ours.buffers["weights"].read_bytes
    assert read <= (1 / count + 0.05) * stock.buffers["w"].read_bytes


@pytest.mark.parametrize(("count", "share"), [(8, 1 / 4), (16, 1 / 2)])
def test_where_stock_fills_tiles_of_32_rows_fewer_products_are_computed(
    count: int, share: float, metal: Metal, simulator: Simulator
) -> None:
    weights = make(64, 256, mx.bfloat16, 4, 64)
    x = rows(count, 256, mx.bfloat16)
    _, stock = Stock(simulator.toolchain).quantized_matmul(
        "affine_qmm_t",
        x,
        weights[:3],
        group_size=64,
        bits=4,
    )
    with simulator.counting() as ours:
        block_matmul(x, weights, metal=metal)
    assert ours.matrix_operations <= share * stock.matrix_operations


def test_what_the_kernel_cannot_take_runs_as_the_twin() -> None:
    metal = Metal()
    weights = make(8, 48, mx.float32)
    x = rows(33, 48, mx.float32)
    assert close(block_matmul(x, weights, metal=metal), wide(x) @ matrix64(weights).T)
    block_matmul(x[:3], weights, metal=metal)
    assert set(metal.ran) == {
        "block_matmul: twin, more than 32 rows",
        "block_matmul: twin, a matrix of 8 x 48",
    }
