"""Counts are exact: they are the numbers that a reader of the source would count by hand."""

from __future__ import annotations

import mlx.core as mx
import pytest
from simulator import Counts, Simulator
from simulator.stock import Stock


def run(simulator: Simulator, source: str, x: mx.array, outputs: int, threads: int = 64) -> Counts:
    kernel = simulator.metal_kernel(
        name="counted",
        input_names=["values"],
        output_names=["result"],
        source=f"uint i = thread_position_in_grid.x;\n{source}",
    )
    kernel(
        inputs=[x],
        grid=(outputs, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(outputs,)],
        output_dtypes=[mx.float32],
    )
    return simulator.launches[-1].counts


def test_bytes_and_sectors_of_a_copy(simulator: Simulator) -> None:
    counts = run(simulator, "result[i] = values[i];", mx.zeros(256), 256)
    read, written = counts.buffers["values"], counts.buffers["result"]
    assert (read.read_bytes, read.read_sectors) == (1024, 32)
    assert (written.written_bytes, written.written_sectors, written.unwritten_bytes) == (
        1024,
        32,
        0,
    )
    assert (counts.threadgroups, counts.threads, counts.launches) == (4, 256, 1)


def test_a_stride_wastes_sectors_but_not_bytes(simulator: Simulator) -> None:
    counts = run(simulator, "result[i] = values[i * 8];", mx.zeros(512), 64)
    assert counts.buffers["values"].read_bytes == 256
    assert counts.buffers["values"].read_sectors == 64


def test_sectors_are_counted_once_a_threadgroup(simulator: Simulator) -> None:
    counts = run(simulator, "result[i] = values[i % 8] + values[8];", mx.zeros(16), 128)
    assert counts.buffers["values"].read_bytes == 128 * 8
    assert counts.buffers["values"].read_sectors == 2 * 2


def test_an_element_loaded_again_at_once_counts_once(simulator: Simulator) -> None:
    source = """
        threadgroup float tile[128];
        uint t = thread_position_in_threadgroup.x;
        tile[2 * t] = values[i] + 1;
        tile[2 * t + 1] = values[i] + 2;
        result[i] = tile[2 * t] + tile[2 * t + 1];
    """
    assert run(simulator, source, mx.zeros(64), 64).buffers["values"].read_bytes == 256


def test_threadgroup_memory_and_barriers(simulator: Simulator) -> None:
    source = """
        threadgroup float tile[64];
        threadgroup half other[3];
        uint t = thread_position_in_threadgroup.x;
        for (int turn = 0; turn < 5; turn++) {
            tile[t] = values[i];
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (t == 0) other[1] = 0;
        result[i] = simd_sum(tile[t]);
    """
    counts = run(simulator, source, mx.zeros(128), 128)
    assert counts.threadgroup_memory == 64 * 4 + 3 * 2
    assert counts.barriers == 2 * 5
    assert counts.simd_calls == 4
    assert counts.shared_written_bytes == 128 * 5 * 4 + 2 * 2
    assert counts.shared_read_bytes == 128 * 4


@pytest.mark.parametrize(
    ("source", "kind", "each"),
    [
        ("result[i] = values[i] * 2.5f + 1.25f;", "float", 2),
        ("result[i] = fma(values[i], 2.5f, 1.25f);", "float", 2),
        (
            "float4 v = float4(values[i]) * float4(1, 2, 3, 4); result[i] = v.x + v.y + v.z + v.w;",
            "float",
            7,
        ),
        ("result[i] = float(half(values[i]));", "convert", 2),
        ("result[i] = exp(values[i]) + log(values[i] + 1.0f);", "transcendental", 2),
        ("result[i] = values[i];", "float", 0),
    ],
)
def test_arithmetic_operations(source: str, kind: str, each: int, simulator: Simulator) -> None:
    assert run(simulator, source, mx.zeros(64), 64).operations[kind] == 64 * each


def test_counting_adds_launches_up(simulator: Simulator) -> None:
    with simulator.counting() as counts:
        for _ in range(3):
            run(simulator, "result[i] = values[i];", mx.zeros(64), 64)
    assert counts.launches == 3
    assert counts.buffers["values"].read_bytes == 3 * 256
    assert counts.read_bytes == counts.written_bytes == 768


def test_a_weight_is_read_once_a_row_by_qmv_and_once_a_tile_by_qmm(stock: Stock) -> None:
    """What the stock kernels are known to do, and what ours are to beat."""
    weights = mx.quantize(mx.random.normal((64, 512)), 64, 4)
    for rows, kernel, times in (
        (3, "affine_qmv_fast", 3),
        (5, "affine_qmv_wide", 1),
        (6, "affine_qmv_wide", 2),
        (17, "affine_qmm_t", 1),
        (33, "affine_qmm_t", 2),
    ):
        x = mx.random.normal((rows, 512))
        _, counts = stock.quantized_matmul(kernel, x, weights, group_size=64, bits=4)
        assert counts.buffers["w"].read_bytes == times * weights[0].nbytes, kernel
    assert counts.matrix_operations == 2 * 2 * 512 // 8 * 16
