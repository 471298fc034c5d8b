"""What becomes of Metal's language: MLX's signature, types, address spaces, arithmetic."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from simulator import Arithmetic, CompileError, LaunchError, Simulator
from simulator.rewrite import to_cpp

X = mx.array([1.0, 2.0, 3.0, 4.0] * 8)


def run(
    simulator: Simulator, source: str, *inputs: Any, header: str = "", **options: Any
) -> mx.array:
    """One SIMD-group; `source` writes result[i] from inputs named a, b, c."""
    kernel = simulator.metal_kernel(
        name="probe",
        input_names=["in_a", "in_b", "in_c"][: len(inputs)],
        output_names=["result"],
        source=f"uint i = thread_position_in_grid.x;\n{source}",
        header=header,
    )
    call = {"output_shapes": [(32,)], "output_dtypes": [mx.float32], "grid": (32, 1, 1)}
    call["threadgroup"] = (32, 1, 1)
    (result,) = kernel(inputs=list(inputs), **{**call, **options})
    return result


def test_small_inputs_are_constant_and_scalars_are_references(simulator: Simulator) -> None:
    """MLX's own signature: fewer than 8 elements in constant memory, none of it written by us."""
    source = "result[i] = in_a[i] * in_b[1] + in_c;"
    assert mx.array_equal(run(simulator, source, X, mx.array([5.0, 7.0]), 0.5), X * 7 + 0.5)
    (launch,) = simulator.launches
    assert launch.counts.buffers.keys() == {"in_a", "result"}
    assert launch.counts.constant_bytes == 32 * (4 + 4)


@pytest.mark.parametrize("size", [7, 8])
def test_a_helper_for_device_memory_fails_on_a_small_input(size: int, simulator: Simulator) -> None:
    """The same kernel compiles for 8 elements and not for 7, as on a Mac."""
    header = "inline float second(const device float* p) { return p[1]; }"
    if size == 8:
        result = run(simulator, "result[i] = second(in_a);", mx.arange(8.0), header=header)
        assert result.tolist() == [1.0] * 32
    else:
        with pytest.raises(CompileError, match="pointers do not cross"):
            run(simulator, "result[i] = second(in_a);", mx.arange(7.0), header=header)


def test_a_float_does_not_become_a_bfloat_by_itself(simulator: Simulator) -> None:
    with pytest.raises(CompileError, match="explicit bfloat"):
        run(simulator, "bfloat16_t rounded = in_a[i]; result[i] = rounded;", X)
    explicit = "bfloat16_t rounded = bfloat16_t(in_a[i]); result[i] = rounded;"
    assert mx.array_equal(run(simulator, explicit, X), X)


def test_a_type_error_names_the_line_of_the_source(simulator: Simulator) -> None:
    with pytest.raises(
        CompileError, match=r"probe:3:\d+: error: .*undeclared identifier 'nowhere'"
    ):
        run(simulator, "result[i] = 0;\nresult[i] = nowhere;", X)


def test_shapes_and_strides_are_passed_when_the_source_names_them(simulator: Simulator) -> None:
    source = "result[i] = in_a_shape[0] * 100 + in_a_shape[1] * 10 + in_a_strides[0] + in_a_ndim;"
    assert run(simulator, source, X.reshape(4, 8))[0].item() == 4 * 100 + 8 * 10 + 8 + 2


def test_inputs_with_gaps_are_copied_and_the_copy_is_counted(simulator: Simulator) -> None:
    wide = mx.arange(64.0).reshape(32, 2)
    assert mx.array_equal(run(simulator, "result[i] = in_a[i];", wide[:, 0]), wide[:, 0])
    assert simulator.launches[0].counts.copied_bytes == 2 * 32 * 4


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.int8, mx.uint32, mx.int64, mx.bool_])
def test_every_dtype_goes_in_and_out(dtype: mx.Dtype, simulator: Simulator) -> None:
    values = (mx.arange(32) % 2).astype(dtype)
    got = run(simulator, "result[i] = in_a[i];", values, output_dtypes=[dtype])
    assert got.dtype == dtype
    assert mx.array_equal(got, values)


def test_init_value_fills_outputs_and_is_a_launch(simulator: Simulator) -> None:
    result = run(simulator, "if (i == 3) result[i] = in_a[i];", X, init_value=9)
    assert result[:5].tolist() == [9, 9, 9, 4, 9]
    assert simulator.launches[0].counts.launches == 2


def test_what_a_kernel_leaves_unwritten_is_not_a_number(simulator: Simulator) -> None:
    result = run(simulator, "if (i != 3) result[i] = in_a[i];", X)
    assert mx.isnan(result).tolist() == [i == 3 for i in range(32)]
    assert simulator.launches[0].counts.buffers["result"].unwritten_bytes == 4


def test_atomics_from_all_threads_do_not_race(simulator: Simulator) -> None:
    kernel = simulator.metal_kernel(
        name="total",
        input_names=["values"],
        output_names=["sum"],
        source="""
            uint i = thread_position_in_grid.x;
            atomic_fetch_add_explicit(sum, values[i], memory_order_relaxed);
        """,
        atomic_outputs=True,
    )
    (total,) = kernel(
        inputs=[mx.arange(96.0)],
        grid=(96, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.float32],
        init_value=0,
    )
    assert total.item() == 95 * 48


def test_lanes_exchange_values_as_metal_says(simulator: Simulator) -> None:
    x = mx.arange(32.0)
    expected = {
        "simd_sum(in_a[i])": [496.0] * 32,
        "simd_max(in_a[i])": [31.0] * 32,
        "simd_shuffle_xor(in_a[i], 1)": [i ^ 1 for i in range(32)],
        "simd_shuffle_down(in_a[i], 2)": [min(i + 2, i if i > 29 else 31) for i in range(32)],
        "simd_shuffle_up(in_a[i], 2)": [i - 2 if i > 1 else i for i in range(32)],
        "simd_broadcast(in_a[i], 5)": [5.0] * 32,
        "simd_prefix_exclusive_sum(in_a[i])": [i * (i - 1) / 2 for i in range(32)],
        "float(simd_any(in_a[i] == 31))": [1.0] * 32,
        "quad_sum(in_a[i])": [16 * (i // 4) + 6 for i in range(32)],
    }
    body = "\n".join(f"result[{n} * 32 + i] = {call};" for n, call in enumerate(expected))
    got = run(simulator, body, x, output_shapes=[(len(expected), 32)])
    for row, (call, values) in zip(got, expected.items(), strict=True):
        assert row.tolist() == values, call


def test_vectors_are_made_converted_and_swizzled(simulator: Simulator) -> None:
    source = """
        float4 four = float4(float2(in_a[0], in_a[1]), in_a[2], in_a[3]);
        half4 narrow = half4(four);
        result[i] = dot(float4(narrow), float4(2)) + four.zw.y + float3(1).x;
    """
    assert run(simulator, source, X)[0].item() == 20 + 4 + 1


@pytest.mark.parametrize(("kind", "bits"), [("half", 11), ("bfloat16_t", 8)])
def test_narrow_types_round_at_each_operation(kind: str, bits: int, simulator: Simulator) -> None:
    """One and half a unit in the last place is one, twice over: nothing is kept between."""
    source = f"""
        {kind} one = {kind}(in_a[0]), little = {kind}(in_b[0]);
        result[i] = one + little + little;
    """
    little = mx.full((32,), 2.0**-bits)
    assert run(simulator, source, X, little)[0].item() == 1


def test_constant_tables_and_vectors_in_memory(simulator: Simulator) -> None:
    header = "constant float steps[4] = {1, 10, 100, 1000};"
    source = """
        const int turns[4] = {3, 2, 1, 0};
        float4 four = ((const device float4*)in_a)[i % 8];
        result[i] = steps[turns[i % 4]] * four.w;
    """
    result = run(simulator, source, X, header=header)
    assert result[:4].tolist() == [4000, 400, 40, 4]
    assert simulator.launches[0].counts.buffers["in_a"].read_bytes == 32 * 16


def test_rewriting_keeps_every_line_in_its_place() -> None:
    metal = (
        "#pragma METAL fp contract(off)\nthreadgroup float a[2], b[3];\nhalf2 x = half2(1, 2);\n"
    )
    assert to_cpp(metal).splitlines() == [
        "#pragma clang fp contract(off)",
        "SIMULATOR_SHARED(a, [2], float) SIMULATOR_SHARED(b, [3], float)",
        "half2 x = make_vector<half2>(1, 2);",
    ]


# (1 + 2^-12)^2 - 1 is 2^-11 + 2^-24: the last term survives only if the product is not rounded
# first.
SQUARE = "float product = in_a[i] * in_a[i]; result[i] = product - 1.0f;"


@pytest.mark.parametrize(
    ("contract", "source", "exact"),
    [
        (True, SQUARE, True),
        (False, SQUARE, False),
        (True, "#pragma METAL fp contract(off)\n" + SQUARE, False),
        (False, "result[i] = fma(in_a[i], in_a[i], -1.0f);", True),
    ],
)
def test_contraction_is_a_choice_that_the_source_can_refuse(
    contract: bool, source: str, exact: bool
) -> None:
    simulator = Simulator(Arithmetic(contract=contract))
    result = run(simulator, f"{{\n{source}\n}}", mx.full((32,), 1 + 2**-12))
    assert result[0].item() == 2**-11 + (2**-24 if exact else 0)


def test_exp_moves_by_one_unit_in_the_last_place() -> None:
    results = [
        run(Simulator(Arithmetic(exp_ulp=ulp)), "result[i] = exp(in_a[i]);", X / 7)
        for ulp in (-1, 0, 1)
    ]
    below, exact, above = (np.array(r).view(np.int32) for r in results)
    assert ((exact - below == 1) & (above - exact == 1)).all()


def test_subnormals_flush_when_asked() -> None:
    tiny = mx.full((32,), 2.0**-126)
    kept = run(Simulator(), "result[i] = in_a[i] * 0.5f;", tiny)
    flushed = run(Simulator(Arithmetic(flush=True)), "result[i] = in_a[i] * 0.5f;", tiny)
    assert np.array(kept).view(np.int32)[0] == 2**22
    assert np.array(flushed).view(np.int32)[0] == 0


MULTIPLY = """
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, in_a, 8);
    simdgroup_load(b, in_b, 8, ulong2(0), true);
    c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, result, 8);
"""


@pytest.mark.parametrize("tree", [False, True])
def test_matrices_multiply(tree: bool) -> None:
    simulator = Simulator(Arithmetic(tree_mma=tree))
    mx.random.seed(1)
    a, b = mx.random.normal((2, 8, 8))
    got = run(simulator, MULTIPLY, a, b, output_shapes=[(8, 8)])
    assert mx.allclose(got, a @ b.T, rtol=0, atol=1e-6)
    assert simulator.launches[0].counts.matrix_operations == 1


def test_a_matrix_made_of_one_number_is_diagonal(simulator: Simulator) -> None:
    source = """
        simdgroup_float8x8 scaled(3.0f);
        simdgroup_store(scaled, result, 8);
        simdgroup_float8x8 filled = make_filled_simdgroup_matrix<float, 8, 8>(in_a[0]);
        simdgroup_store(filled, result + 64, 8);
    """
    got = run(simulator, source, X, output_shapes=[(2, 8, 8)])
    assert mx.array_equal(got, mx.stack([3 * mx.eye(8), mx.ones((8, 8))]))


def test_a_matrix_is_loaded_from_memory_of_its_own_type(simulator: Simulator) -> None:
    source = "simdgroup_half8x8 a; simdgroup_load(a, in_a, 8); result[i] = a.thread_elements()[0];"
    with pytest.raises(CompileError, match="memory of its own type"):
        run(simulator, source, mx.zeros((8, 8)))


def test_threadgroup_variables_belong_to_kernels(simulator: Simulator) -> None:
    header = "inline float f(uint i) { threadgroup float tile[32]; tile[i] = 1; return tile[i]; }"
    with pytest.raises(CompileError, match="in kernels only"):
        run(simulator, "result[i] = f(i);", X, header=header)


def test_the_order_inside_a_matrix_operation_is_a_choice() -> None:
    a = mx.array([[1e8, 1.0, -1e8, 1.0, 0, 0, 0, 0]] * 8)
    results = [
        run(
            Simulator(Arithmetic(tree_mma=tree)),
            MULTIPLY,
            a,
            mx.ones((8, 8)),
            output_shapes=[(8, 8)],
        )
        for tree in (False, True)
    ]
    assert [r[0, 0].item() for r in results] == [1.0, 0.0]


def test_the_edge_of_a_grid_gets_a_smaller_threadgroup(simulator: Simulator) -> None:
    result = run(
        simulator,
        "result[i] = threads_per_threadgroup.x;",
        X,
        grid=(24, 1, 1),
        threadgroup=(16, 1, 1),
    )
    assert result[:24].tolist() == [16] * 16 + [8] * 8


def test_gaps_without_a_copy_are_refused(simulator: Simulator) -> None:
    kernel = simulator.metal_kernel(
        "bare", ["x"], ["y"], "y[0] = x[0];", ensure_row_contiguous=False
    )
    with pytest.raises(LaunchError, match="`x` has gaps"):
        kernel(
            inputs=[mx.zeros((32, 2))[:, 0]],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )
