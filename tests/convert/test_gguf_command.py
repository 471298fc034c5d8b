"""`dflash-mlx convert` of a GGUF file: its own types, or others that are asked for."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from dflash_mlx.errors import DFlashError
from tests.convert.tiny_gguf import tiny_gguf
from tests.convert.tiny_models import (
    FILES,
    config_of,
    convert,
    names,
    tensors,
)

GGUF = {"Q4_0": (4, 32), "Q5_0": (5, 32), "Q5_1": (5, 32), "Q8_0": (8, 32)}


@pytest.mark.parametrize("kind", GGUF)
def test_a_gguf_keeps_its_own_types(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf(kind)
    convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "ours")
    layer = load_model(tmp_path / "ours")[0].layers[0].mlp.up_proj
    assert (layer.bits, layer.group_size) == GGUF[kind]
    floats = (layer.scales.astype(mx.float32), layer.biases.astype(mx.float32))
    numbers = mx.dequantize(layer.weight, *floats, group_size=32, bits=layer.bits)
    assert mx.array_equal(numbers, mx.array(tiny.stored("blk.0.ffn_up.weight")))
    out = capsys.readouterr().out
    assert f"to {layer.bits} bits in groups of 32 (affine)" in out
    sizes = sum(array.nbytes for array in tensors(tmp_path / "ours").values())
    assert f"-> {sizes / 1e3:,.1f} kB" in out
    weights = load_weights_count(tmp_path / "ours")
    assert f"per weight  {8 * sizes / weights:.2f} bits" in out


def load_weights_count(folder: Path) -> int:
    from mlx_lm.utils import get_total_parameters

    return int(get_total_parameters(load_model(folder)[0]))


def test_a_gguf_is_quantized_anew_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf("F16", tied=False)
    file = tiny.write(tmp_path / "tiny.gguf")
    convert(file, tmp_path / "dry", q_bits=5, keep=["lm_head"], dry_run=True)
    dry = capsys.readouterr().out.splitlines()
    convert(file, tmp_path / "ours", q_bits=5, keep=["lm_head"])
    assert dry[:6] == capsys.readouterr().out.splitlines()[:6]
    written = tensors(tmp_path / "ours")
    exact = mx.array(tiny.stored("blk.1.ffn_up.weight")).astype(mx.float16)
    theirs = mx.quantize(exact, group_size=64, bits=5)
    path = "model.layers.1.mlp.up_proj"
    for part, array in zip(("weight", "scales", "biases"), theirs, strict=True):
        assert mx.array_equal(written[f"{path}.{part}"], array), part
    assert written["lm_head.weight"].dtype == mx.float16
    assert names(tmp_path / "ours") == FILES | {"generation_config.json"}
    assert "quantization" in config_of(tmp_path / "ours")


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.architecture = "mamba"
    with pytest.raises(DFlashError, match="family 'mamba': only these can be imported: "):
        convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "ours")
    assert names(tmp_path) == {"tiny.gguf"}
