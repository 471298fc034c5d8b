"""What cannot be converted: one sentence, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.errors import DFlashError
from tests.convert.tiny_models import (
    config_of,
    convert,
    names,
    tensors,
    tiny_config,
    tiny_weights,
)


def shard(source: Path) -> None:
    """Cut the weights into two files with an index."""
    weights = tensors(source)
    place: dict[str, str] = {}
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        part = {name: weights[name] for name in sorted(weights)[number - 1 :: 2]}
        mx.save_safetensors(str(source / file), part)
        place |= dict.fromkeys(part, file)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


def missing_shard(source: Path) -> None:
    shard(source)
    (source / "model-00002-of-00002.safetensors").unlink()


def shard_without_a_tensor(source: Path) -> None:
    shard(source)
    file = source / "model-00002-of-00002.safetensors"
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    weights.popitem()
    mx.save_safetensors(str(file), weights)


def zero_bytes(source: Path) -> None:
    (source / "model.safetensors").write_bytes(b"")


def not_finite(source: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["model.norm.weight"][3] = mx.nan
    mx.save_safetensors(str(source / "model.safetensors"), weights)


def no_tokenizer(source: Path) -> None:
    (source / "tokenizer.json").unlink()


def broken_tokenizer(source: Path) -> None:
    (source / "tokenizer.json").write_text("{")


def hot(source: Path) -> None:
    (source / "generation_config.json").write_text('{"temperature": "hot"}')


def link_to_nowhere(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to("gone")


def damaged_index(source: Path) -> None:
    (source / "model.safetensors.index.json").write_text('{"weight_map": 3}')


def unknown_family(source: Path) -> None:
    (source / "config.json").write_text(json.dumps(config_of(source) | {"model_type": "weird"}))


FAULTS = {
    missing_shard: "lacks model-00002-of-00002.safetensors",
    shard_without_a_tensor: "lacks 1 tensors that its index names",
    zero_bytes: "is damaged or cut short; fetch it again",
    not_finite: r"model\.norm\.weight holds numbers that are not finite",
    no_tokenizer: "The tokenizer in .*/source cannot be loaded",
    broken_tokenizer: "The tokenizer in .*/source cannot be loaded",
    hot: r"generation_config\.json cannot be used: a value of it is no number",
    link_to_nowhere: "lacks model.safetensors, which is a link to nowhere: fetch it again",
    damaged_index: r"index\.json is damaged: it names no weights",
    unknown_family: r"\(Model type weird not supported\): fetch it again, or choose another",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_and_leaves_nothing(
    fault: Any, source: Path, tmp_path: Path
) -> None:
    fault(source)
    with pytest.raises(DFlashError, match=FAULTS[fault]):
        convert(source, tmp_path / "ours", quantize=True)
    assert names(tmp_path) == {"place"}


def test_shards_convert_as_one(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "whole", quantize=True)
    shard(source)
    convert(source, tmp_path / "parts", quantize=True)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(mx.array_equal(whole[name], parts[name]) for name in whole)


def test_too_little_space_is_told_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("dflash_mlx.hub.store.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DFlashError, match="free some space"):
        convert(source, tmp_path / "ours")
    assert names(tmp_path) == {"place"}
