"""Every packaging becomes one MLX format, and goes back to z-lab's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.drafter import DrafterConfig, load_drafter
from dflash_mlx.errors import DFlashError, UsageError
from tests.convert.tiny_models import config_of, convert, names, tensors
from tests.drafter.packagings import (
    DRAFTED,
    deepspec_config,
    reduced,
    specforge_config,
    speculators_config,
    with_the_targets,
    write,
)
from tests.drafter.tiny import RAW, parameters, tiny_config, tiny_drafter
from tests.test_row_convention import DOUBTFUL, MASKS, write_simple_pair

ONE = tiny_config(max_position_embeddings=4096)


def of_zlab(config: DrafterConfig) -> DrafterConfig:
    """The config, without what z-lab's packaging would have said besides."""
    return replace(config, num_target_layers=6, rope=ONE.rope, target_model=None)


@pytest.mark.parametrize(
    "config",
    [speculators_config(), specforge_config(), RAW],
    ids=["speculators", "specforge", "z-lab"],
)
def test_one_drafter_in_any_packaging_is_one_folder(tmp_path: Path, config: dict[str, Any]) -> None:
    drafter = tiny_drafter()
    foreign = "dflash_config" not in config
    weights = with_the_targets(drafter) if foreign else parameters(drafter)

    folder = convert(write(tmp_path / "source", config, weights), tmp_path / "ours")

    assert names(folder) == {"config.json", "model.safetensors"}
    assert of_zlab(load_drafter(folder).config) == ONE
    own = tensors(folder)
    assert own.keys() == parameters(drafter).keys()
    assert all(mx.array_equal(own[name], w) for name, w in parameters(drafter).items())
    assert config_of(folder)["architectures"] == ["DFlashDraftModel"]


def test_a_reduced_vocabulary_becomes_the_file_and_the_head_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "source", speculators_config(), reduced(tiny_drafter()))

    made = load_drafter(convert(source, tmp_path / "ours"))

    assert (made.config.draft_vocab, made.config.own_head) == (DRAFTED, True)
    assert names(tmp_path / "ours") >= {"draft_vocab.json"}
    assert "d2t" not in tensors(tmp_path / "ours")
    with pytest.raises(UsageError, match="has a draft vocabulary"):
        convert(tmp_path / "ours", tmp_path / "again", draft_vocab=3, answers=[tmp_path])


def test_what_rows_predict_stays_in_doubt_without_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "source", deepspec_config(), with_the_targets(tiny_drafter()))

    made = load_drafter(convert(source, tmp_path / "ours")).config

    assert (made.drafts_from_anchor, made.rows_in_doubt, made.block_size) == (True, True, 7)
    assert "what its rows predict is not stated" in capsys.readouterr().out


def test_a_target_settles_what_rows_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_mlx.convert.trial.ANSWER_TOKENS", 8)
    pair = write_simple_pair(tmp_path / "pair", MASKS, **DOUBTFUL[0])

    folder = convert(pair.drafter, tmp_path / "ours", target=str(pair.target))

    made = load_drafter(folder).config
    assert (made.drafts_from_anchor, made.rows_in_doubt) == (False, False)
    assert "not stated" not in capsys.readouterr().out


def test_quantized_and_back_for_z_labs_readers(tmp_path: Path) -> None:
    source = write(tmp_path / "source", speculators_config(), reduced(tiny_drafter()))
    ours = convert(source, tmp_path / "ours", q_bits=8, q_group_size=32)

    folder = convert(ours, tmp_path / "zlab", packaging="z-lab")

    assert names(folder) == {"config.json", "model.safetensors"}
    config, own = config_of(folder), tensors(folder)
    assert own.keys() == parameters(tiny_drafter()).keys()
    assert {array.dtype for array in own.values()} == {mx.bfloat16}
    assert not {"quantization", "quantization_config", "target_model"} & set(config)
    assert config["dflash_config"] == {"mask_token_id": 63, "target_layer_ids": [1, 4]}
    assert config["rope_theta"] == 10000.0
    for name, weight in parameters(tiny_drafter()).items():
        assert mx.allclose(own[name].astype(mx.float32), weight, atol=0.02), name


def test_what_z_labs_readers_would_misread_is_refused(tmp_path: Path) -> None:
    config = speculators_config(sample_from_anchor=True)
    source = write(tmp_path / "source", config, parameters(tiny_drafter()))
    with pytest.raises(DFlashError, match="no word for rows that predict"):
        convert(source, tmp_path / "zlab", packaging="z-lab")
    with pytest.raises(UsageError, match="leave out --packaging, or those"):
        convert(source, tmp_path / "zlab", packaging="z-lab", quantize=True)


def test_a_copy_of_the_targets_config_gets_the_drafters_dimensions(tmp_path: Path) -> None:
    """Other readers take them from there, where we take the weights'."""
    config = speculators_config()
    config["transformer_layer_config"] |= {"num_attention_heads": 16, "intermediate_size": 999}
    source = write(tmp_path / "source", config, parameters(tiny_drafter()))

    made = json.loads((convert(source, tmp_path / "ours") / "config.json").read_text())

    assert (made["num_attention_heads"], made["intermediate_size"]) == (4, 48)
