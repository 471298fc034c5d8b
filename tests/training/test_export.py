"""An exported drafter: what others read, what our engine serves, and nothing in halves."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.commands.train.app import Job
from dflash_mlx.commands.train.export import _figures_of, _steps, export_once
from dflash_mlx.commands.train.export import export as export_stage
from dflash_mlx.commands.train.stages import Stages
from dflash_mlx.drafter import load_drafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.training import export as exporting
from dflash_mlx.training.architecture import make_drafter, new_config
from dflash_mlx.training.checkpoint import write_drafter
from dflash_mlx.training.corpus import fingerprint
from dflash_mlx.training.export import Facts, export
from dflash_mlx.training.initial import flat, random_weights
from dflash_mlx.training.settings import RunSettings
from tests.convert.tiny_models import convert
from tests.tiny_folders import tiny_pair
from tests.training.tiny import talk

ROW = {"temperature": 0, "rows": 8, "acceptance_length": 1.75, "by_position": [0.5, 0.25]}
SPEEDS = {"tokens_per_second": 30.04, "plain_tokens_per_second": 20, "times_plain": 1.5}
FACTS = Facts(
    target="tiny",
    base="org/tiny",
    data={"conversations": 12, "blas": None},
    recipe={"layers": 1, "learning_rate": 6e-4},
    figures=[
        {**ROW, "set": "held out, walked"},
        {**ROW, "set": "chat, served", "temperature": 0.7, **SPEEDS},
        {**ROW, "set": "chat, served", "looping": True},
    ],
    steps="40",
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
    said = "this folder has it in 8 bits, and it drafts from its 20 most frequent tokens alone."
    assert said in (tmp_path / "out" / "mlx" / "README.md").read_text()
    assert said not in (tmp_path / "out" / "zlab" / "README.md").read_text()


def test_a_drafter_from_elsewhere_is_written_out_and_dequantized(
    trained: Path, tmp_path: Path
) -> None:
    config = json.loads((trained / "config.json").read_text())
    own = config.pop("dflash_config")
    for name in ("block_size", "num_target_layers"):
        del config[name]
    (trained / "config.json").write_text(json.dumps({**config, **own}))
    before = flat(load_drafter(trained).parameters())
    for name in ("plain", "quantized"):
        folder = trained if name == "plain" else convert(trained, tmp_path / "8bit", q_bits=8)
        export(folder, tmp_path / name, "t", FACTS, "cpu")
        after = flat(load_drafter(tmp_path / name / "zlab", mx.float32).parameters())
        assert before.keys() == after.keys()
        assert all(mx.allclose(before[key], after[key], rtol=1e-2, atol=1e-2) for key in before)
        card = (tmp_path / name / "mlx" / "README.md").read_text()
        assert "1 layers, blocks of 16 rows, taps" in card


def test_the_card_tells_data_recipe_and_figures(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "out", "tiny-dflash", FACTS, "cpu")
    for name in ("zlab", "mlx"):
        card = (tmp_path / "out" / name / "README.md").read_text()
        assert card.startswith("---\nbase_model: org/tiny\n")
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


@pytest.fixture
def job(trained: Path, tmp_path: Path) -> Stages:
    """A run from a file of conversations, whose folder holds other data that it did not use."""
    folder, answers = tmp_path / "job", tmp_path / "talks.jsonl"
    lines = [talk(5, 60, seed=seed).to_json() for seed in range(3)]
    answers.write_text("".join(f"{line}\n" for line in lines))
    (folder / "run").mkdir(parents=True)
    trained.rename(folder / "run" / "best")
    noted = {"data": [str(answers)], "heldout": 0.0, "layers": 1}
    (folder / "run" / "settings.json").write_text(json.dumps(noted))
    (folder / "data").mkdir()
    (folder / "data" / "manifest.json").write_text('{"conversations": 99}')
    return Stages(Job(folder=folder), prepare())


def test_answers_and_card_are_of_the_data_that_the_run_used(job: Stages) -> None:
    export_stage(job, {"draft_tokens": 20})
    exported = job.place.root / "export" / "mlx"
    assert len(load_drafter(exported).config.draft_vocab or ()) == 20
    card = (exported / "README.md").read_text()
    for words in ("files: talks.jsonl", "conversations: 3", "answer tokens: 180", "layers: 1"):
        assert f"- {words}\n" in card
    assert str(job.place.root) not in card


def test_answers_that_are_gone_are_named(job: Stages, tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").unlink()
    with pytest.raises(UsageError, match=r"no .*talks.jsonl: put it back, or leave --draft-tokens"):
        export_stage(job, {"draft_tokens": 20})


def test_the_card_of_another_drafter_has_not_this_runs_recipe(job: Stages, tmp_path: Path) -> None:
    (job.place.run / "best").rename(tmp_path / "other")
    export_stage(job, {"draft_model": tmp_path / "other"})
    card = (job.place.root / "export" / "mlx" / "README.md").read_text()
    assert "## Figures" in card
    assert "## Data" not in card
    assert "## Recipe" not in card


def test_a_best_drafter_that_is_not_the_last_has_not_its_steps(job: Stages) -> None:
    best, last = job.place.run / "best", job.place.run / "checkpoints" / "step-0001400"
    shutil.copytree(best, last / "drafter")
    (last / "state.json").write_text('{"step": 1400}')
    assert _steps(best, job.place.run) == "1,400"
    (last / "drafter" / "config.json").write_text("{}")
    assert _steps(best, job.place.run) == "1,400; this drafter is of an earlier one"


def test_an_export_is_made_once_where_the_recipe_says(
    job: Stages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told when the run has gone on since."""
    job.recipe = {"export": {"output": str(tmp_path / "mine")}}
    export_once(job)
    export_once(job)
    assert (tmp_path / "mine" / "zlab" / "README.md").exists()
    assert "older" not in capsys.readouterr().err
    os.utime(tmp_path / "mine" / "zlab" / "config.json", (0, 0))
    export_once(job)
    assert "mine is older than" in capsys.readouterr().err
