"""A folder loads whole and strictly, or is refused in a sentence that names the fault."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.errors import DFlashError

from .tiny import RAW, parameters, rows, save, taps, tiny_config, tiny_drafter


def rows_of(drafter: Drafter) -> mx.array:
    """What `drafter` makes of a fixed context and block."""
    context, block = taps(9, drafter.config), rows(8, 32, seed=2)
    return drafter.hidden_states(block, context, drafter.make_cache()).astype(mx.float32)


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    loaded = load_drafter(save(tmp_path, drafter, RAW))
    assert loaded.dtype == mx.float32
    assert mx.array_equal(rows_of(loaded), rows_of(drafter))


def test_several_shards_are_one_checkpoint(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    loaded = load_drafter(save(tmp_path, drafter, RAW, shards=3))
    assert mx.array_equal(rows_of(loaded), rows_of(drafter))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_every_float_gets_one_dtype(tmp_path: Path, dtype: mx.Dtype) -> None:
    """Mixed floats promote activations, silently and slowly."""
    drafter = tiny_drafter()
    drafter.set_dtype(mx.bfloat16)
    drafter.norm.weight = drafter.norm.weight.astype(mx.float32)
    save(tmp_path, drafter, RAW)
    loaded = load_drafter(tmp_path, dtype)
    assert {array.dtype for array in parameters(loaded).values()} == {dtype}
    assert load_drafter(tmp_path).dtype == mx.bfloat16


def test_attention_biases_are_told_by_the_weights(tmp_path: Path) -> None:
    drafter = tiny_drafter(tiny_config(attention_bias=True))
    loaded = load_drafter(save(tmp_path, drafter, RAW))
    assert loaded.config.attention_bias
    assert mx.array_equal(rows_of(loaded), rows_of(drafter))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_rows_are_those_of_the_dequantized_weights(tmp_path: Path, bits: int) -> None:
    drafter = tiny_drafter()
    nn.quantize(drafter, group_size=32, bits=bits, class_predicate=wide)
    raw = RAW | {"quantization": {"group_size": 32, "bits": bits, "mode": "affine"}}
    loaded = load_drafter(save(tmp_path, drafter, raw))
    assert isinstance(loaded.fc, nn.QuantizedLinear)
    assert mx.allclose(rows_of(loaded), rows_of(dequantized(loaded)), atol=1e-3)


def test_layers_may_be_quantized_each_in_their_own_way(tmp_path: Path) -> None:
    own: dict[str, bool | dict[str, Any]] = {
        "fc": {"group_size": 64, "bits": 8},
        "layers.0.mlp.up_proj": {"group_size": 32, "bits": 4},
        "layers.1.self_attn.q_proj": False,
    }
    drafter = tiny_drafter()
    nn.quantize(drafter, class_predicate=lambda path, _: own.get(path, False))
    raw = RAW | {"quantization": {"group_size": 32, "bits": 2, **own}}
    loaded = load_drafter(save(tmp_path, drafter, raw))
    assert loaded.fc.bits == 8
    assert loaded.layers[0].mlp.up_proj.bits == 4
    assert isinstance(loaded.layers[1].self_attn.q_proj, nn.Linear)
    assert mx.allclose(rows_of(loaded), rows_of(dequantized(loaded)), atol=1e-3)


def test_scales_and_biases_of_quantized_layers_follow_the_dtype(tmp_path: Path) -> None:
    """Report 21: on M1 and M2, activations of 32 bits restore a quantized drafter."""
    drafter = tiny_drafter()
    drafter.set_dtype(mx.bfloat16)
    nn.quantize(drafter, group_size=32, bits=4, class_predicate=wide)
    save(tmp_path, drafter, RAW | {"quantization": {"group_size": 32, "bits": 4}})
    loaded = load_drafter(tmp_path, mx.float32)
    assert loaded.fc.scales.dtype == loaded.fc.biases.dtype == mx.float32
    assert loaded.fc.weight.dtype == mx.uint32


def wide(_: str, module: nn.Module) -> bool:
    """Linear layers whose inputs fill groups of 32."""
    return isinstance(module, nn.Linear) and module.weight.shape[-1] % 32 == 0


def dequantized(drafter: Drafter) -> Drafter:
    """The same drafter with plain weights."""
    plain, weights = Drafter(drafter.config), []
    for path, module in drafter.named_modules():
        if isinstance(module, nn.QuantizedLinear):
            weights.append(
                (
                    f"{path}.weight",
                    mx.dequantize(
                        module.weight, module.scales, module.biases, module.group_size, module.bits
                    ),
                )
            )
        elif isinstance(module, nn.Linear | nn.RMSNorm):
            weights.append((f"{path}.weight", module.weight))
    plain.load_weights(weights)
    return plain


def changed(**changes: Any) -> dict[str, Any]:
    """`config.json` with top-level keys changed; None leaves one out."""
    raw = copy.deepcopy(RAW) | changes
    return {key: value for key, value in raw.items() if value is not None}


def refusal(folder: Path) -> str:
    """The sentence with which `folder` is refused."""
    with pytest.raises(DFlashError) as caught:
        load_drafter(folder)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "There is no model folder" in refusal(tmp_path / "nowhere")


def test_a_folder_without_config(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "cannot be read: Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    save(tmp_path, tiny_drafter(), RAW)
    (tmp_path / "config.json").write_text(text)
    assert "fetch it again" in refusal(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04pickle")
    assert "has no model.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_weights_that_are_cut_short(tmp_path: Path, kept: int) -> None:
    save(tmp_path, tiny_drafter(), RAW)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "cut short" in refusal(tmp_path)


def test_a_pointer_in_place_of_weights(tmp_path: Path) -> None:
    save(tmp_path, tiny_drafter(), RAW)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.example/spec/v1\n")
    assert "git lfs pull" in refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path, tiny_drafter(), RAW, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "lacks model-00002-of-00002.safetensors" in refusal(tmp_path)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    del drafter.layers[1].mlp["up_proj"]
    assert "lacks tensors: layers.1.mlp.up_proj.weight." in refusal(save(tmp_path, drafter, RAW))
    drafter = tiny_drafter()
    drafter.embed_tokens = nn.Embedding(4, 4)
    assert "unexpected tensors: embed_tokens.weight." in refusal(save(tmp_path, drafter, RAW))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    drafter.layers[1].mlp.up_proj.weight = mx.zeros((40, 32))
    sentence = refusal(save(tmp_path, drafter, RAW))
    assert "layers.1.mlp.up_proj.weight is [40, 32], but must be [48, 32]" in sentence


def test_a_tensor_of_a_type_that_is_not_a_float_is_named(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    drafter.norm.weight = mx.zeros((32,), mx.int8)
    assert "norm.weight is stored as I8" in refusal(save(tmp_path, drafter, RAW))


def test_a_quantization_that_mlx_does_not_write(tmp_path: Path) -> None:
    raw = changed(quantization_config={"quant_method": "gptq"})
    assert "quantized by 'gptq'" in refusal(save(tmp_path, tiny_drafter(), raw))
    raw = changed(quantization={"group_size": 7, "bits": 4})
    drafter = tiny_drafter()
    nn.quantize(drafter, group_size=32, bits=4, class_predicate=wide)
    refusal(save(tmp_path, drafter, raw))


def test_a_language_model_in_place_of_a_drafter(tmp_path: Path) -> None:
    raw = changed(architectures=["LlamaForCausalLM"], dflash_config=None)
    sentence = refusal(save(tmp_path, tiny_drafter(), raw))
    assert "holds a language model (LlamaForCausalLM), not a DFlash drafter" in sentence


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"markov_rank": 16}, "a Markov head of rank 16 (DSpark)"),
        ({"projector_type": "mlp"}, "SpecForge's projector_type 'mlp'"),
    ],
)
def test_another_packaging_is_named_and_never_loaded_in_part(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    sentence = refusal(save(tmp_path, tiny_drafter(), changed(**changes)))
    assert f"needs {what}" in sentence
    assert "not supported yet" in sentence
