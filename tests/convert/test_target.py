"""Converted targets: the tensors that mlx-lm's own conversion writes, and what it gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.convert import convert as mlx_lm_convert
from mlx_lm.utils import load_model

from dflash_mlx.convert.conversion import Wishes, open_source, prepare
from dflash_mlx.errors import DFlashError, UsageError
from tests.convert.tiny_models import (
    FAMILIES,
    config_of,
    convert,
    names,
    tensors,
    tiny_config,
    tiny_weights,
    write_model,
)

PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "-q": ({"quantize": True}, {"quantize": True}),
    "8 bits of 32": (
        {"q_bits": 8, "q_group_size": 32},
        {"quantize": True, "q_bits": 8, "q_group_size": 32},
    ),
    "float32": ({"dtype": "float32"}, {"dtype": "float32"}),
    "mxfp4": ({"q_mode": "mxfp4"}, {"quantize": True, "q_mode": "mxfp4"}),
    "recipe": (
        {"recipe": "mixed_3_6"},
        {"quantize": True, "quant_predicate": "mixed_3_6", "q_group_size": 64},
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_are_those_of_mlx_lms_conversion(
    family: str, plan: str, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "source", family)
    ours, theirs = PLANS[plan]
    convert(source, tmp_path / "ours", **ours)
    mlx_lm_convert(str(source), str(tmp_path / "theirs"), **theirs)
    written, expected = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert written.keys() == expected.keys()
    for name, array in expected.items():
        assert written[name].dtype == array.dtype, name
        assert mx.array_equal(written[name], array), name


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64])
def test_bits_and_groups_are_those_of_the_loaded_layer(
    bits: int, group_size: int, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "source")
    convert(source, tmp_path / "ours", q_bits=bits, q_group_size=group_size)
    model, _ = load_model(tmp_path / "ours")
    layers = [m for _, m in model.named_modules() if hasattr(m, "bits")]
    assert len(layers) == 15
    assert {(m.bits, m.group_size, m.mode) for m in layers} == {(bits, group_size, "affine")}


@pytest.mark.parametrize(
    ("mode", "bits", "group_size"), [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)]
)
def test_modes_are_those_of_the_loaded_layer(
    mode: str, bits: int, group_size: int, tmp_path: Path
) -> None:
    convert(write_model(tmp_path / "source"), tmp_path / "ours", q_mode=mode)
    layer = load_model(tmp_path / "ours")[0].layers[0].mlp.up_proj
    assert (layer.mode, layer.bits, layer.group_size) == (mode, bits, group_size)


@pytest.mark.parametrize("width", [96, 80, 48])
def test_a_width_that_the_group_does_not_divide_gets_a_smaller_one_or_is_kept(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "source", intermediate_size=width)
    convert(source, tmp_path / "ours", quantize=True)
    path = "model.layers.1.mlp.down_proj"
    layer = load_model(tmp_path / "ours")[0].layers[1].mlp.down_proj
    if width == 96:
        own = {"group_size": 32, "bits": 4, "mode": "affine"}
        assert config_of(tmp_path / "ours")["quantization"][path] == own
        assert layer.group_size == 32
    else:
        assert type(layer) is nn.Linear
        assert f"no group divides its width {width}): model.layers.0" in capsys.readouterr().out


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("head", ["none", "other", "same"])
def test_tied_or_not_the_config_follows_the_tensors(head: str, flag: bool, tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config(tie_word_embeddings=head != "other"))
    if head == "same":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    source = write_model(tmp_path / "source", weights=weights, tie_word_embeddings=flag)
    convert(source, tmp_path / "ours", q_bits=8)
    model, config = load_model(tmp_path / "ours")
    tied = head == "none" or (head == "same" and flag)
    assert config["tie_word_embeddings"] is tied
    assert hasattr(model, "lm_head") is not tied
    rows = weights["model.embed_tokens.weight" if head == "none" else "lm_head.weight"]
    table = model.model.embed_tokens if tied else model.lm_head
    exact = mx.dequantize(table.weight, table.scales, table.biases, group_size=64, bits=8)
    np.testing.assert_allclose(exact.astype(mx.float32), rows.astype(mx.float32), atol=0.02)


@pytest.mark.parametrize(
    ("globs", "kept"),
    [
        (["embed_tokens"], {"model.embed_tokens"}),
        (["lm_head", "*.layers.1.mlp.*"], {"lm_head", "gate", "up", "down"}),
    ],
)
def test_kept_layers_stay_floats(globs: list[str], kept: set[str], tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", "qwen3")
    convert(source, tmp_path / "ours", quantize=True, keep=globs)
    model, _ = load_model(tmp_path / "ours")
    floats = [p for p, m in model.named_modules() if type(m) in (nn.Linear, nn.Embedding)]
    assert len(floats) == len(kept)
    assert all(any(part in path for part in kept) for path in floats)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a glob for nothing": ({"quantize": True, "keep": ["lm_head"]}, "--keep lm_head matches no"),
    "a recipe of no name": ({"recipe": "mixed_1_2"}, "--recipe is one of mixed_2_6"),
    "a recipe with bits": ({"recipe": "mixed_3_6", "q_bits": 4}, "leave out --q-bits"),
    "a recipe in another mode": ({"recipe": "mixed_3_6", "q_mode": "mxfp4"}, "leave out --q-mode"),
    "bits that MLX lacks": ({"q_bits": 7}, "--q-bits is one of 2, 3, 4, 5, 6, 8 in mode affine"),
    "a group of another mode": ({"q_mode": "mxfp4", "q_group_size": 64}, "one of 32 in mode mxfp4"),
    "keep without -q": ({"keep": ["lm_head"]}, "it needs -q"),
    "a draft vocabulary": ({"draft_vocab": 64}, "--draft-vocab is for drafters"),
    "private alone": ({"private": True}, "name the repository"),
    "answers alone": ({"answers": [Path("a")]}, "give its N"),
    "a target for a target": ({"target": "x"}, "--target is for drafters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    flags, sentence = REFUSED[case]
    with pytest.raises(UsageError, match=sentence):
        convert(source, tmp_path / "ours", **flags)
    assert names(tmp_path) == {"source"}


def test_a_recipe_that_matches_no_layer_is_an_error(tmp_path: Path) -> None:
    source = open_source(write_model(tmp_path / "source"))
    for layer in source.model.layers:
        layer.mlp.other = layer.mlp.pop("down_proj")
    from dflash_mlx.convert.quantize import Quantization

    with pytest.raises(DFlashError, match="mixed_3_6 matches no layer"):
        prepare(source, Wishes(Quantization(recipe="mixed_3_6")), "cpu")


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    convert(write_model(tmp_path / "source"), tmp_path / "ours", quantize=True)
    with pytest.raises(DFlashError, match="quantized already: convert the original"):
        convert(tmp_path / "ours", tmp_path / "twice", quantize=True)


def test_float16_casts_floats_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "source")
    convert(source, tmp_path / "ours", dtype="float16", quantize=True)
    found = {array.dtype for array in tensors(tmp_path / "ours").values()}
    assert found == {mx.float16, mx.uint32}
    assert config_of(tmp_path / "ours")["torch_dtype"] == "float16"
    assert "of float16's 65,504" in capsys.readouterr().out


def test_activations_beyond_float16_are_refused_by_the_modules_name(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["model.layers.1.mlp.up_proj.weight"] *= 3e5
    source = write_model(tmp_path / "source", weights=weights)
    with pytest.raises(DFlashError, match=r"layers\.1\.mlp.* float16 cannot hold"):
        convert(source, tmp_path / "ours", dtype="float16")
    assert names(tmp_path) == {"source"}


def test_weights_beyond_float16_are_refused_by_name(tmp_path: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["model.norm.weight"] *= 1e5
    source = write_model(tmp_path / "source", weights=weights)
    with pytest.raises(DFlashError, match=r"model\.norm\.weight reaches .* float16 cannot hold"):
        convert(source, tmp_path / "ours", dtype="float16")


def test_a_large_model_is_cut_into_shards_with_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_mlx.convert.files.SHARD", 60_000)
    source = write_model(tmp_path / "source")
    convert(source, tmp_path / "ours")
    assert "model.safetensors.index.json" in names(tmp_path / "ours")
    ours, _ = load_model(tmp_path / "ours")
    theirs, _ = load_model(source)
    prompt = mx.array([[1, 2, 3]])
    assert mx.array_equal(ours(prompt), theirs(prompt))
