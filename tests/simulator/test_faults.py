"""Kernels broken on purpose: each is refused, by name, at the line marked `// here`."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import pytest
from simulator import (
    DivergentBarrier,
    DivergentCall,
    DivisionByZero,
    InputWritten,
    KernelFault,
    LaunchError,
    Misaligned,
    NoSuchLane,
    OutOfBounds,
    Race,
    Simulator,
    Uninitialised,
    WrongMemoryFlag,
)

START = """
    uint i = thread_position_in_threadgroup.x;
    uint n = threadgroup_position_in_grid.x;
"""


@dataclass(frozen=True)
class Broken:
    """A kernel over 2 threadgroups of 64 threads; `values` and `result` have 128 floats."""

    name: str
    source: str
    fault: type[KernelFault]
    says: str

    @property
    def line(self) -> int:
        lines = (START + self.source).splitlines()
        return next(number for number, line in enumerate(lines, 1) if "// here" in line)


BROKEN = [
    Broken(
        "missing_barrier",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        result[n * 64 + i] = tile[63 - i];  // here
        """,
        Race,
        "`tile`",
    ),
    Broken(
        "barrier_with_the_wrong_flag",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        threadgroup_barrier(mem_flags::mem_device);
        result[n * 64 + i] = tile[63 - i];  // here
        """,
        WrongMemoryFlag,
        "mem_device",
    ),
    Broken(
        "simdgroup_barrier_across_simdgroups",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        result[n * 64 + i] = tile[63 - i];  // here
        """,
        Race,
        "`tile`",
    ),
    Broken(
        "read_then_overwritten",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float other = tile[63 - i];
        tile[i] = other * 2;  // here
        result[n * 64 + i] = other;
        """,
        Race,
        "read",
    ),
    Broken(
        "device_memory_behind_a_threadgroup_barrier",
        """
        result[n * 64 + i] = values[n * 64 + i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float other = result[n * 64 + 63 - i];  // here
        result[n * 64 + i] = other;
        """,
        WrongMemoryFlag,
        "mem_threadgroup",
    ),
    Broken(
        "index_one_too_far_in_an_input",
        """
        result[n * 64 + i] = values[n * 64 + i + 1];  // here
        """,
        OutOfBounds,
        "`values`",
    ),
    Broken(
        "index_one_too_far_in_an_output",
        """
        result[n * 64 + i + 1] = values[n * 64 + i];  // here
        """,
        OutOfBounds,
        "`result`",
    ),
    Broken(
        "index_before_the_first",
        """
        result[n * 64 + i] = values[int(n * 64 + i) - 1];  // here
        """,
        OutOfBounds,
        "byte -4",
    ),
    Broken(
        "index_one_too_far_in_threadgroup_memory",
        """
        threadgroup float tile[64];
        threadgroup float other[64];
        other[i] = 1;
        threadgroup float* at = tile + i + 1;
        *at = values[n * 64 + i];  // here
        threadgroup_barrier(mem_flags::mem_threadgroup);
        result[n * 64 + i] = tile[i] + other[i];
        """,
        OutOfBounds,
        "`tile`",
    ),
    Broken(
        "index_one_too_far_in_registers",
        """
        float mine[4];
        for (uint j = 0; j < 4; j++) mine[j] = values[n * 64 + j];
        result[n * 64 + i] = mine[i / 13];  // here
        """,
        OutOfBounds,
        "past its end",
    ),
    Broken(
        "barrier_in_a_divergent_branch",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        if (i < 48) {
            threadgroup_barrier(mem_flags::mem_threadgroup);  // here
        }
        result[n * 64 + i] = tile[i];
        """,
        DivergentBarrier,
        "of 32",
    ),
    Broken(
        "barrier_that_a_simdgroup_skips",
        """
        threadgroup float tile[64];
        tile[i] = values[n * 64 + i];
        if (i >= 32) return;
        threadgroup_barrier(mem_flags::mem_threadgroup);  // here
        result[n * 64 + i] = tile[i];
        """,
        DivergentBarrier,
        "32 of 64 threads: thread 32 of threadgroup",
    ),
    Broken(
        "simd_sum_in_a_divergent_branch",
        """
        float sum = 0;
        if (i % 2 == 0) {
            sum = simd_sum(values[n * 64 + i]);  // here
        }
        result[n * 64 + i] = sum;
        """,
        DivergentCall,
        "simd_sum is reached by 16 of 32 lanes",
    ),
    Broken(
        "simd_sum_at_two_places",
        """
        float sum;
        if (i % 32 < 8) {
            sum = simd_sum(values[n * 64 + i]);  // here
        } else {
            sum = simd_sum(values[n * 64 + i] + 1);
        }
        result[n * 64 + i] = sum;
        """,
        DivergentCall,
        "8 of 32 lanes",
    ),
    Broken(
        "shuffle_from_lane_40",
        """
        result[n * 64 + i] = simd_shuffle(values[n * 64 + i], i % 32 + 9);  // here
        """,
        NoSuchLane,
        "asks lane 32 in simd_shuffle",
    ),
    Broken(
        "uninitialised_threadgroup_memory",
        """
        threadgroup float tile[64];
        if (i != 17) tile[i] = values[n * 64 + i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        result[n * 64 + i] = tile[i];  // here
        """,
        Uninitialised,
        "byte 68 of threadgroup variable `tile`",
    ),
    Broken(
        "uninitialised_output",
        """
        result[n * 64 + i] += values[n * 64 + i];  // here
        """,
        Uninitialised,
        "`result`",
    ),
    Broken(
        "write_race_in_threadgroup_memory",
        """
        threadgroup float best[1];
        best[0] = values[n * 64 + i];  // here
        threadgroup_barrier(mem_flags::mem_threadgroup);
        result[n * 64 + i] = best[0];
        """,
        Race,
        "`best`",
    ),
    Broken(
        "write_race_between_threadgroups",
        """
        result[i] = values[n * 64 + i];  // here
        """,
        Race,
        "another threadgroup",
    ),
    Broken(
        "store_into_an_input",
        """
        device float* inputs = (device float*)values;
        inputs[n * 64 + i] = 0;  // here
        result[n * 64 + i] = 0;
        """,
        InputWritten,
        "`values`",
    ),
    Broken(
        "vector_at_an_odd_address",
        """
        float4 four = *(const device float4*)(values + i % 2);  // here
        result[n * 64 + i] = four.x;
        """,
        Misaligned,
        "no multiple of 16",
    ),
    Broken(
        "division_by_zero",
        """
        result[n * 64 + i] = float(100 / int(i));  // here
        """,
        DivisionByZero,
        "thread 0",
    ),
]


def run(simulator: Simulator, name: str, source: str, threads: int = 64) -> list[mx.array]:
    values = mx.arange(128, dtype=mx.float32)
    kernel = simulator.metal_kernel(
        name=name, input_names=["values"], output_names=["result"], source=START + source
    )
    return kernel(
        inputs=[values],
        grid=(2 * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(128,)],
        output_dtypes=[mx.float32],
    )


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_kernel_is_reported_by_name_and_line(broken: Broken, simulator: Simulator) -> None:
    with pytest.raises(KernelFault) as caught:
        run(simulator, broken.name, broken.source)
    fault = caught.value
    assert type(fault) is broken.fault, str(fault)
    assert fault.kernel == broken.name
    assert (fault.location.file, fault.line) == (broken.name, broken.line), str(fault)
    assert broken.says in str(fault)


def test_a_race_names_both_lines(simulator: Simulator) -> None:
    broken = BROKEN[0]
    with pytest.raises(Race) as caught:
        run(simulator, broken.name, broken.source)
    assert "tile[i] = values[n * 64 + i];" in str(caught.value)
    assert "tile[63 - i]" in str(caught.value)


SOUND = {
    "every thread writes the same": """
        threadgroup float best[1];
        best[0] = 7;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        result[n * 64 + i] = best[0];
    """,
    "a SIMD-group orders its own memory": """
        threadgroup float tile[64];
        for (int turn = 0; turn < 3; turn++) {
            tile[i] = values[n * 64 + i] + turn;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            result[n * 64 + i] = tile[i ^ 1];
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    """,
    "device memory behind a device barrier": """
        result[n * 64 + i] = values[n * 64 + i];
        threadgroup_barrier(mem_flags::mem_device);
        float other = result[n * 64 + 63 - i];
        threadgroup_barrier(mem_flags::mem_device);
        result[n * 64 + i] = other;
    """,
    "a whole SIMD-group may skip a SIMD call": """
        result[n * 64 + i] = 0;
        if (i >= 32) return;
        result[n * 64 + i] = simd_sum(values[n * 64 + i]);
    """,
}


@pytest.mark.parametrize("source", SOUND.values(), ids=SOUND.keys())
def test_a_sound_kernel_is_not_refused(source: str, simulator: Simulator) -> None:
    (result,) = run(simulator, "sound", source)
    assert mx.all(mx.isfinite(result)).item()


def test_too_many_threads_are_refused(simulator: Simulator) -> None:
    with pytest.raises(LaunchError, match="a threadgroup of 512 threads; at most 256"):
        run(simulator, "crowded", "result[i] = 0;", threads=512)


def test_too_much_threadgroup_memory_is_refused(simulator: Simulator) -> None:
    source = """
        threadgroup float tile[4096];
        threadgroup half other[8193];
        tile[i] = 0;
        other[i] = 0;
        result[n * 64 + i] = tile[i] + other[i];
    """
    with pytest.raises(LaunchError, match=r"32770 bytes of threadgroup memory .*`other` 16386"):
        run(simulator, "greedy", source)
