"""The replayed state is the recurrence's, and mlx-lm's own, bit for bit."""

from __future__ import annotations

import types

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import gated_delta
from simulator import MODELS, Simulator

from dflash_mlx.kernels.delta_replay import delta_replay, twin
from dflash_mlx.kernels.metal import Metal

from .oracle import close, same_bits, wide

pytestmark = pytest.mark.simulator

Inputs = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


def inputs(
    rows: int,
    dims: tuple[int, int] = (16, 128),
    dtype: mx.Dtype = mx.bfloat16,
    vector: bool = False,
) -> Inputs:
    """State, keys, values, gates and betas of 2 key heads and 4 value heads."""
    mx.random.seed(rows)
    value_dims, key_dims = dims
    state = mx.random.normal((1, 4, value_dims, key_dims))
    keys = (mx.random.normal((1, rows, 2, key_dims)) / key_dims**0.5).astype(dtype)
    values = mx.random.normal((1, rows, 4, value_dims)).astype(dtype)
    gates = mx.random.uniform(0.5, 1, (1, rows, 4, *([key_dims] if vector else [])))
    betas = mx.random.uniform(0, 1, (1, rows, 4)).astype(dtype)
    return state, keys, values, gates, betas


def by_formula(parts: Inputs, accepted: int) -> np.ndarray:
    state, keys, values, gates, betas = (wide(part)[0] for part in parts)
    keys = keys.repeat(2, axis=1)
    for t in range(accepted):
        gate = gates[t][..., None, :] if gates.ndim == 3 else gates[t][:, None, None]
        state = state * gate
        delta = (values[t] - np.einsum("hvk,hk->hv", state, keys[t])) * betas[t][:, None]
        state = state + np.einsum("hv,hk->hvk", delta, keys[t])
    return state[None]


@settings(max_examples=10)
@given(rows=st.sampled_from([1, 7, 8, 16]), data=st.data())
def test_it_is_the_recurrence(rows: int, data: st.DataObject, metal: Metal) -> None:
    accepted = data.draw(st.integers(0, rows))
    parts, count = inputs(rows), mx.array([accepted], mx.int32)
    expected = by_formula(parts, accepted)
    assert close(delta_replay(*parts, count, metal=metal), expected)
    assert close(twin(*parts, count), expected)


@pytest.mark.parametrize(
    ("dims", "dtype", "vector"),
    [((16, 64), mx.float16, False), ((32, 256), mx.float32, False), ((16, 32), mx.float32, True)],
)
def test_other_sizes_types_and_gates(
    dims: tuple[int, int], dtype: mx.Dtype, vector: bool, metal: Metal
) -> None:
    parts = inputs(5, dims, dtype, vector)
    count = mx.array([3], mx.int32)
    expected = by_formula(parts, 3)
    assert close(delta_replay(*parts, count, metal=metal), expected)
    assert close(twin(*parts, count), expected)


def mlx_lm_state(parts: Inputs, rows: int, simulator: Simulator) -> mx.array:
    """What mlx-lm's packed kernel, simulated, leaves after the first `rows` rows."""
    state, keys, values, gates, betas = parts
    metal = types.SimpleNamespace(is_available=lambda: True)
    fast = types.SimpleNamespace(metal_kernel=simulator.metal_kernel)
    namespace = {**vars(gated_delta), "mx": types.SimpleNamespace(metal=metal, fast=fast)}
    make = types.FunctionType(gated_delta._make_gated_delta_packed_kernel.__code__, namespace)
    of_rows = [part[:, :rows] for part in (keys, keys, values, gates, betas)]
    template = [("InT", keys.dtype), ("StT", mx.float32), ("Dk", 128), ("Dv", 16)]
    return make()(
        inputs=[*of_rows, state, rows],
        template=[*template, ("Hk", 2), ("Hv", 4)],
        grid=(32, 2, 4),
        threadgroup=(32, 2, 1),
        output_shapes=[values[:, :rows].shape, state.shape],
        output_dtypes=[keys.dtype, mx.float32],
    )[1]


@pytest.mark.parametrize("model", MODELS)
def test_the_state_has_the_bits_of_mlx_lm(
    model: str, metals: dict[str, Metal], simulators: dict[str, Simulator]
) -> None:
    """A pass over the accepted rows alone would leave the same state."""
    parts = inputs(8)
    for accepted in (1, 5, 8):
        ours = delta_replay(*parts, mx.array([accepted], mx.int32), metal=metals[model])
        assert same_bits(ours, mlx_lm_state(parts, accepted, simulators[model]))


def test_rejected_rows_are_neither_read_nor_felt(metal: Metal, simulator: Simulator) -> None:
    parts = inputs(8)
    for part in parts[1:]:
        part[:, 3:] = mx.nan
    with simulator.counting() as counts:
        after = delta_replay(*parts, mx.array([3], mx.int32), metal=metal)
    assert close(after, by_formula(parts, 3))
    assert counts.buffers["state_in"].read_bytes == parts[0].nbytes
    assert counts.buffers["keys"].read_bytes == 4 * 3 * 4 * 128 * 2  # four SIMD-groups a head
    assert counts.launches == 1


def test_no_accepted_row_leaves_the_state(metal: Metal) -> None:
    parts = inputs(4)
    assert same_bits(delta_replay(*parts, mx.array([0], mx.int32), metal=metal), parts[0])


def test_what_the_kernel_cannot_take_runs_as_the_twin() -> None:
    metal = Metal()
    parts = inputs(2, (16, 48))
    delta_replay(*parts, mx.array([1], mx.int32), metal=metal)
    assert metal.ran == {"delta_replay: twin, a state of 16 x 48": 1}
