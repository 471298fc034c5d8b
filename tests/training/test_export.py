"""An exported drafter: what others read, what our engine serves, and nothing in halves."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.commands.train.export import _figures_of
from dflash_mlx.drafter import load_drafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.training import export as exporting
from dflash_mlx.training.architecture import make_drafter, new_config
from dflash_mlx.training.checkpoint import write_drafter
from dflash_mlx.training.corpus import fingerprint
from dflash_mlx.training.export import Facts, export
from dflash_mlx.training.initial import flat, random_weights
from dflash_mlx.training.settings import RunSettings
from tests.tiny_folders import tiny_pair
from tests.training.tiny import talk

ROW = {"temperature": 0, "rows": 8, "acceptance_length": 1.75, "by_position": [0.5, 0.25]}
SPEEDS = {"tokens_per_second": 30.04, "plain_tokens_per_second": 20, "times_plain": 1.5}
FACTS = Facts(
    target="tiny",
    data={"conversations": 12, "blas": None},
    recipe={"layers": 1, "learning_rate": 6e-4},
    figures=[
        {**ROW, "set": "held out, walked"},
        {**ROW, "set": "chat, served", "temperature": 0.7, **SPEEDS},
        {**ROW, "set": "chat, served", "looping": True},
    ],
    steps=40,
)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    pair = tiny_pair()
    config = new_config(pair, RunSettings(layers=1), thinking=False)
    folder = tmp_path / "trained"
    folder.mkdir()
    write_drafter(folder, config, random_weights(make_drafter(config), pair.target, 0))
    return folder


def test_z_labs_packaging_is_bfloat16_and_has_only_what_it_must(
    trained: Path, tmp_path: Path
) -> None:
    export(trained, tmp_path / "out", "tiny-dflash", FACTS, "cpu")
    arrays = mx.load(str(tmp_path / "out" / "zlab" / "model.safetensors"))
    assert isinstance(arrays, dict)
    assert len(arrays) == 3 + 11
    assert {array.dtype for array in arrays.values()} == {mx.bfloat16}
    config = json.loads((tmp_path / "out" / "zlab" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["torch_dtype"] == "bfloat16"
    assert config["enable_thinking"] is False


def test_both_folders_load_and_hold_the_trained_weights(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "out", "tiny-dflash", FACTS, "cpu")
    before = flat(load_drafter(trained).parameters())
    for name in ("zlab", "mlx"):
        after = flat(load_drafter(tmp_path / "out" / name, mx.float32).parameters())
        for key in before:
            assert mx.allclose(before[key], after[key], rtol=1e-2, atol=1e-3)


def test_the_mlx_folder_may_be_quantized_and_have_a_draft_vocabulary(
    trained: Path, tmp_path: Path
) -> None:
    answers = tmp_path / "train.jsonl"
    answers.write_text(talk(5, 60).to_json() + "\n")
    export(trained, tmp_path / "out", "t", FACTS, "cpu", bits=8, draft_tokens=20, answers=[answers])
    drafter = load_drafter(tmp_path / "out" / "mlx")
    assert drafter.config.draft_vocab is not None
    assert len(drafter.config.draft_vocab) == 20
    assert "scales" in drafter.layers[0].mlp.gate_proj
    assert load_drafter(tmp_path / "out" / "zlab").config.draft_vocab is None


def test_the_card_tells_data_recipe_and_figures(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "out", "tiny-dflash", FACTS, "cpu")
    for name in ("zlab", "mlx"):
        card = (tmp_path / "out" / name / "README.md").read_text()
        assert card.startswith("---\nbase_model: tiny\n")
        assert "| held out, walked | 0 | 8 | 1.75 | .50 .25 | – | – | – |" in card
        assert "| chat, served | 0.7 | 8 | 1.75 | .50 .25 | 30.0 | 20.0 | 1.50 |" in card
        assert "| chat, served, looping answers | 0 | 8 |" in card
        assert "- conversations: 12" in card
        assert "- learning rate: 0.0006" in card
        assert "- steps done: 40" in card
        assert "blas" not in card


def test_an_interrupted_export_leaves_what_was_there(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "out"
    monkeypatch.setattr(exporting, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(trained, output, "t", FACTS, "cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trained"]
    assert load_drafter(trained)
    monkeypatch.undo()
    export(trained, output, "t", FACTS, "cpu")
    whole = sorted(path.relative_to(output) for path in output.rglob("*"))
    monkeypatch.setattr(exporting, "write", interrupted)
    with pytest.raises((KeyboardInterrupt, DFlashError)):
        export(trained, output, "t", FACTS, "cpu")
    assert sorted(path.relative_to(output) for path in output.rglob("*")) == whole


def test_an_export_never_overwrites(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "out", "t", FACTS, "cpu")
    with pytest.raises(DFlashError, match="exists already"):
        export(trained, tmp_path / "out", "t", FACTS, "cpu")


def test_the_card_tells_figures_of_this_drafter_alone(trained: Path, tmp_path: Path) -> None:
    """Not those of an earlier checkpoint, nor of another that it was compared with."""
    rows = [{**ROW, "set": "mine", "drafter": fingerprint(trained)}]
    rows.append({**ROW, "set": "theirs", "drafter": "0123456789abcdef"})
    (tmp_path / "figures.json").write_text(json.dumps({"rows": rows}))
    assert _figures_of(trained, tmp_path / "figures.json") == rows[:1]
    assert _figures_of(trained, tmp_path / "none.json") == []
