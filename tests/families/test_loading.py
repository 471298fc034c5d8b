"""Families on disk: what `load` makes of them, quantized or not, and what cannot draft."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.api import generate
from dflash_mlx.backend import prepare
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import load_pair
from dflash_mlx.target.load import load_target
from dflash_mlx.target.model import Target
from tests.families.models import build, config_of
from tests.tiny_folders import write_tiny_pair, write_tokenizer

BACKEND = prepare(exact=sys.platform == "linux")


def write(folder: Path, family: str, model: nn.Module, **config: object) -> Path:
    """A model's folder as mlx-lm writes it."""
    folder.mkdir()
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        {"format": "mlx"},
    )
    (folder / "config.json").write_text(json.dumps({**config_of(family), **config}))
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("family", ["qwen3_5_moe", "nemotron_h"])
def test_what_must_stay_exact_is_cast_to_no_other_dtype(tmp_path: Path, family: str) -> None:
    folder = write(tmp_path / "model", family, build(family))

    model, config, _ = load_target(folder, mx.bfloat16, "cpu")

    parameters: Any = tree_flatten(model.parameters())
    dtypes = {path.split(".")[-1]: array.dtype for path, array in parameters}
    assert dtypes["A_log"] == mx.float32
    assert dtypes["weight"] == mx.bfloat16
    assert Target(model, config).dtype == mx.bfloat16


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5_moe", "gemma4"])
def test_a_quantized_model_is_dequantized_on_a_cpu_and_says_the_same(
    tmp_path: Path, family: str
) -> None:
    model = build(family)
    nn.quantize(
        model,
        group_size=32,
        bits=8,
        class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0,
    )
    quantization = {"group_size": 32, "bits": 8}
    folder = write(tmp_path / "model", family, model, quantization=quantization)
    tokens = mx.array([[3, 1, 4, 1, 5]])

    loaded, _, weights = load_target(folder, None, "cpu")

    assert weights == "8-bit weights, dequantized"
    assert mx.allclose(loaded(tokens), model(tokens), atol=1e-4).item()


def test_kv_bits_that_do_not_suit_are_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    """Report 78."""
    folder = write(tmp_path / "model", "gpt_oss", build("gpt_oss"))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()

    with pytest.raises(UsageError, match="leave --kv-bits away"):
        load_target(folder, None, "cpu", kv_bits=8)

    assert mx.get_peak_memory() <= before + 1000


def test_a_pair_takes_kv_bits_or_says_why_not(tmp_path: Path) -> None:
    folders = write_tiny_pair(tmp_path)
    names = PairFolders("tiny", folders.target, "drafter", folders.drafter)

    with pytest.raises(UsageError, match="in 4 bits"):  # its heads are 16 wide
        load_pair(names, None, BACKEND, kv_bits=4)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_target_that_cannot_go_back_runs_plainly_unless_its_drafter_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    monkeypatch.setattr(Target, "rollback_refusal", lambda _: "its OddCache cannot be rolled back")
    folders = write_tiny_pair(tmp_path)
    names = PairFolders("tiny", folders.target, "drafter", folders.drafter, chosen=chosen)

    if chosen:
        with pytest.raises(
            DFlashError, match=r"This target cannot draft: its OddCache.*--no-draft"
        ):
            load_pair(names, None, BACKEND)
        return
    pair = load_pair(names, None, BACKEND)

    assert pair.drafter is None
    assert pair.configuration.draft_model is None
    assert "decoding plainly: its OddCache cannot be rolled back" in pair.configuration.notes
    assert len(generate(pair, "hello", max_tokens=3).tokens) == 3
