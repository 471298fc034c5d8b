"""Norm and rope in one launch: near float64, and a row's bits are its own."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import MODELS, Simulator

from dflash_mlx.kernels.metal import Metal
from dflash_mlx.kernels.qkv_prologue import Heads, Prologue, qkv_prologue, twin

from .oracle import close, same_bits, wide

pytestmark = pytest.mark.simulator


def weight(dims: int, seed: int) -> mx.array:
    return mx.random.uniform(0.5, 1.5, (dims,), key=mx.random.key(seed))


def projection(layer: Prologue, rows: int, dtype: mx.Dtype, batch: int = 1) -> mx.array:
    width = (layer.heads + 2 * layer.kv_heads) * layer.dims
    return mx.random.normal((batch, rows, width), key=mx.random.key(rows)).astype(dtype)


def by_formula(projected: mx.array, position: int, layer: Prologue) -> list[np.ndarray]:
    """Angles in float32, as the kernel and MLX have them; the rest in float64."""
    x = wide(projected).reshape(*projected.shape[:2], -1, layer.dims).swapaxes(1, 2)
    bounds = [layer.heads, layer.heads + layer.kv_heads]
    queries, keys, values = np.split(x, bounds, axis=1)
    places = np.arange(position, position + x.shape[2], dtype=np.float32)
    inverse = np.float32(1) / np.array(layer.table)
    angles = (places * np.float32(layer.position_scale))[:, None] * inverse
    cos, sin = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))
    turned = layer.rotated // 2
    first = np.arange(turned) * (2 if layer.interleaved else 1)
    second = first + (1 if layer.interleaved else turned)

    def prepared(part: np.ndarray, norm: mx.array | None) -> np.ndarray:
        if norm is not None:
            square = (part**2).mean(-1, keepdims=True)
            part = part / np.sqrt(square + layer.epsilon) * wide(norm)
        part = part * layer.magnitude
        out = part.copy()
        out[..., first] = part[..., first] * cos - part[..., second] * sin
        out[..., second] = part[..., first] * sin + part[..., second] * cos
        return out

    return [prepared(queries, layer.q_weight), prepared(keys, layer.k_weight), values]


def all_close(got: Heads, expected: list[np.ndarray]) -> bool:
    return all(close(one, other) for one, other in zip(got, expected, strict=True))


QWEN3 = Prologue(4, 2, 128, 128, base=1e6, q_weight=weight(128, 1), k_weight=weight(128, 2))
LLAMA = Prologue(3, 1, 64, 64, base=5e5)
LFM = Prologue(2, 1, 80, 80, base=1e6, interleaved=True)
QWEN35 = Prologue(2, 1, 256, 64, base=1e7, q_weight=weight(256, 3), k_weight=weight(256, 4))
YARN = Prologue(2, 2, 96, 96, wavelengths=2 + mx.arange(48.0), position_scale=0.5, magnitude=1.2)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "layer", [QWEN3, LLAMA, LFM, QWEN35, YARN], ids=["qwen3", "llama", "lfm", "qwen3.5", "yarn"]
)
def test_twin_and_kernel_are_near_float64(layer: Prologue, dtype: mx.Dtype, metal: Metal) -> None:
    projected = projection(layer, 5, dtype, batch=2)
    expected = by_formula(projected, 300, layer)
    # MLX's exp2 of the base costs a few bits of the wavelengths: its angles drift with positions.
    near = twin(projected.astype(mx.float32), 2, layer)
    assert all_close(near, by_formula(projected, 2, layer))
    if (dtype == mx.bfloat16) != (layer is LLAMA):  # a type each, to compile less
        assert all_close(qkv_prologue(projected, 300, layer, metal=metal), expected)


@settings(max_examples=10)
@given(rows=st.integers(1, 32), position=st.sampled_from([0, 1, 511, 4096, 65535]))
def test_any_row_at_any_position(rows: int, position: int, metal: Metal) -> None:
    projected = projection(LLAMA, rows, mx.float32)
    expected = by_formula(projected, position, LLAMA)
    assert all_close(qkv_prologue(projected, position, LLAMA, metal=metal), expected)


@pytest.mark.parametrize("model", MODELS)
def test_a_row_has_the_same_bits_alone_and_in_a_block(model: str, metals: dict[str, Metal]) -> None:
    projected = projection(QWEN3, 8, mx.bfloat16)
    together = qkv_prologue(projected, 1000, QWEN3, metal=metals[model])
    for row in range(8):
        one = slice(row, row + 1)
        alone = qkv_prologue(projected[:, one], 1000 + row, QWEN3, metal=metals[model])
        for part, whole in zip(alone, together, strict=True):
            assert same_bits(part, whole[:, :, one])


def test_one_launch_reads_the_projection_once(metal: Metal, simulator: Simulator) -> None:
    projected = projection(QWEN3, 8, mx.bfloat16)
    with simulator.counting() as counts:
        qkv_prologue(projected, 0, QWEN3, metal=metal)
    assert counts.launches == 1
    assert counts.buffers["projected"].read_bytes == projected.nbytes


def test_what_the_kernel_cannot_take_runs_as_the_twin() -> None:
    metal = Metal()
    qkv_prologue(projection(LLAMA, 33, mx.float32), 0, LLAMA, metal=metal)
    assert metal.ran == {"qkv_prologue: twin, more than 32 rows": 1}
