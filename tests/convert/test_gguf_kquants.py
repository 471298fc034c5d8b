"""K-quants: what is written is what the `gguf` package says that the file holds."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from dflash_mlx.convert.gguf_file import GGUFTensor
from dflash_mlx.convert.gguf_kquants import ANEW, NEARLY, REPACKED, dequantized, describe, nearly


def random_tensor(type_: str, rows: int = 6, width: int = 512) -> GGUFTensor:
    """Random codes and 6-bit scales under sane float16 scales."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_]]
    random = np.random.default_rng(len(type_) + ord(type_[1]))
    data = random.integers(0, 256, (rows, width // block, block_bytes), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q5_0": (0,)}.get(type_, (0, 2))
    for at in places:
        scale = (random.random(data.shape[:2]) / 64 + 0.001).astype("<f2")
        data[..., at : at + 2] = scale[..., None].view(np.uint8)
    return GGUFTensor("t", type_, (rows, width), data.reshape(rows, -1))


def written(tensor: GGUFTensor, dtype: str) -> dict[str, mx.array]:
    entries = nearly("m", tensor, dtype, lambda rows: rows)
    arrays = {entry.name: entry.data() for entry in entries}
    assert {e.name: (e.shape, e.nbytes) for e in entries} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }
    return {name: mx.array(array) for name, array in arrays.items()}


def values(tensor: GGUFTensor, dtype: str) -> np.ndarray:
    parts = written(tensor, dtype)
    weights = mx.dequantize(
        parts["m.weight"],
        parts["m.scales"].astype(mx.float32),
        parts["m.biases"].astype(mx.float32),
        group_size=32,
        bits=NEARLY[tensor.type],
    )
    return np.array(weights)


@pytest.mark.parametrize("type_", REPACKED)
def test_with_float32_scales_a_repacked_tensor_is_the_files(type_: str) -> None:
    tensor = random_tensor(type_)
    truth = quants.dequantize(tensor.data, GGMLQuantizationType[type_])
    np.testing.assert_allclose(values(tensor, "F32"), truth, rtol=0, atol=1e-6)


@pytest.mark.parametrize("type_", REPACKED)
def test_with_float16_scales_only_their_rounding_is_lost(type_: str) -> None:
    tensor = random_tensor(type_)
    truth = quants.dequantize(tensor.data, GGMLQuantizationType[type_])
    largest = np.abs(truth).max() * 2
    np.testing.assert_allclose(values(tensor, "F16"), truth, rtol=0, atol=largest * 2**-11)


@pytest.mark.parametrize("type_", ANEW)
@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_the_others_are_what_mlx_makes_of_the_packages_numbers(type_: str, dtype: str) -> None:
    tensor = random_tensor(type_)
    truth = quants.dequantize(tensor.data, GGMLQuantizationType[type_])
    kind = mx.float16 if dtype == "F16" else mx.float32
    theirs = mx.quantize(mx.array(truth).astype(kind), group_size=32, bits=ANEW[type_])
    ours = written(tensor, dtype)
    for name, array in zip(["weight", "scales", "biases"], theirs, strict=True):
        assert mx.array_equal(ours[f"m.{name}"], array), name


@pytest.mark.parametrize("type_", NEARLY)
def test_rows_are_put_in_their_order(type_: str) -> None:
    tensor = random_tensor(type_)
    plain = written(tensor, "F32")["m.weight"]
    turned = nearly("m", tensor, "F32", lambda rows: rows[::-1])
    np.testing.assert_array_equal(turned[0].data(), np.array(plain)[::-1])


@pytest.mark.parametrize("type_", [*NEARLY, "Q4_0", "Q8_0"])
def test_dequantized_has_the_tensors_shape(type_: str) -> None:
    assert dequantized(random_tensor(type_)).shape == (6, 512)


def test_what_is_not_exact_is_said_a_type_a_sentence() -> None:
    tensors = [random_tensor(name) for name in ("Q4_K", "Q6_K", "Q4_K", "Q8_0", "Q5_0")]
    assert describe(tensors) == [
        "tensors of Q4_K (2): codes kept, scales rounded",
        "tensors of Q6_K (1): dequantized, then quantized to 8 bits",
    ]


@pytest.mark.parametrize("type_", ["Q5_0", "Q4_K", "Q6_K"])
def test_stacked_experts_are_rows_of_one_tensor(type_: str) -> None:
    flat = random_tensor(type_)
    stacked = GGUFTensor("t", type_, (2, 3, 512), flat.data.reshape(2, 3, -1))
    for name, array in written(stacked, "F32").items():
        assert mx.array_equal(array.reshape(6, -1), written(flat, "F32")[name]), name
