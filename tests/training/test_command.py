"""`dflash-mlx train` as a person runs it: all stages, one stopped and resumed, and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx import cli
from dflash_mlx.backend import prepare
from dflash_mlx.commands.train import stages as stages_module
from dflash_mlx.commands.train.app import Job
from dflash_mlx.commands.train.flags import flags_of, parsed
from dflash_mlx.commands.train.progress import Pace
from dflash_mlx.commands.train.stages import Stages
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.training.alone import alone
from dflash_mlx.training.settings import (
    STAGES,
    EvalSettings,
    PrepareSettings,
    RunSettings,
    gather,
    to_json,
)
from tests.conftest import ROOT, RunCli
from tests.tiny_folders import tiny_pair, write_target

RECIPE = """
prepare: {topics: 3, own: 3, length: 120, long_share: 0, heldout: 0.5, slots: 8}
run: {layers: 1, anchors: 8, batch_tokens: 256, steps: 4, eval_every: 2, eval_conversations: 1}
eval: {conversations: 2, serve: 2, max_tokens: 12, plain: true, temperature: [0, 0.7]}
export: {bits: 8, draft_tokens: 60}
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_target(tmp_path / "target", 256)
    return tmp_path / "target"


def test_from_nothing_to_a_drafter_that_serves(
    run_cli: RunCli, target: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    job = tmp_path / "job"
    done = run_cli(
        "train", "--model", str(target), "--folder", str(job), "--config", str(recipe), home=True
    )
    assert done.returncode == 0, done.stderr
    for words in ("tokens of answers", "memory: about", "step 4 of 4", "walked", "try it:"):
        assert words in done.stderr
    assert done.stdout == ""
    figures = json.loads((job / "figures.json").read_text())["rows"]
    greedy, sampled = (row for row in figures if row["set"] == "held out, served")
    assert (greedy["temperature"], sampled["temperature"]) == (0.0, 0.7)
    assert greedy["walked_like_served"] == 1.0
    assert all(set(row["same_as_plain"]) == {True} for row in (greedy, sampled))
    assert all(row["times_plain"] > 0 for row in (greedy, sampled))
    card = (job / "export" / "mlx" / "README.md").read_text()
    assert "drafter (arXiv 2602.06036) for `target`" in card
    assert str(tmp_path) not in card
    assert "| held out, served | 0 | 8 |" in card
    assert "| held out, served | 0.7 | 8 |" in card
    asked = ("generate", "--model", str(target), "--draft-model", str(job / "export" / "mlx"))
    answer = run_cli(*asked, "-p", "Hi", "-m", "8", "--json", home=True)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["rounds"] > 0


def test_ctrl_c_saves_and_the_same_command_goes_on(target: Path, tmp_path: Path) -> None:
    data = tmp_path / "talks.jsonl"
    lines = [
        json.dumps({"ids": [257, *range(n, n + 60)], "assistant": "0" * 11 + "1" * 50})
        for n in range(20)
    ]
    data.write_text("\n".join(lines) + "\n")
    command = [
        *(sys.executable, "-m", "dflash_mlx", "train", "run", "--model", str(target)),
        *("--folder", str(tmp_path / "job"), "--data", str(data), "--layers", "1"),
        *("--anchors", "8", "--batch-tokens", "128", "--steps", "400", "--eval-every", "0"),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training to"):  # the line before the first step
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(120) == 130, rest
    assert "the same command goes on" in rest
    [checkpoint] = sorted((tmp_path / "job" / "run" / "checkpoints").iterdir())
    step = json.loads((checkpoint / "state.json").read_text())["step"]
    shorter = [*command[:-4], "--steps", str(step + 2), "--eval-every", "0"]
    again = subprocess.run(shorter, env=env, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"going on behind step {step}" in again.stderr


@pytest.mark.parametrize("stage", ["prepare", "run"])
def test_a_folder_where_another_is_at_work_is_left_alone(
    run_cli: RunCli, target: Path, tmp_path: Path, stage: str
) -> None:
    job = tmp_path / "job"
    given = ["--model", str(target), "--folder", str(job)]
    job.mkdir()
    with alone(job):
        held = run_cli("train", stage, *given, home=True)
    assert held.returncode == 1
    assert "Another `dflash-mlx train` is at work" in held.stderr
    assert str(job) in held.stderr
    assert not (job / "data").exists()
    assert not (job / "run").exists()
    with alone(job):  # it is free again, and nothing of the lock lies there
        assert {path.name for path in job.iterdir()} == {"train.json"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--layers", "0"], "layers must be 1 or more"),
        (["run", "--taps", "1;2"], "--taps takes numbers"),
        (["eval", "--temperature", "0,-1"], "temperature must be 0 or more; it is -1."),
        (["run", "--config", "none.yaml"], "no file none.yaml"),
        (["--dtype", "float32", "run"], "behind the stage"),
        (["run", "--learning-rat", "1"], "--learning-rat"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    folder = ["--folder", str(tmp_path / "job")] if arguments[0] in STAGES else []
    assert cli.run(["train", *arguments, *folder]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "job").exists()


def stages_of(folder: Path, model: str | None = None, config: Path | None = None) -> Stages:
    return Stages(Job(model=model, folder=folder, config=config), prepare())


def test_a_folder_is_for_one_target_once_it_is_found(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However that is spelled, and from wherever; a mistyped name binds nothing."""
    job = tmp_path / "job"
    with pytest.raises(DFlashError, match="no model folder typo"):
        _ = stages_of(job, "typo").names
    assert not job.exists()
    monkeypatch.chdir(tmp_path)
    assert stages_of(job, "./target").names.model_folder == target
    monkeypatch.chdir(job)
    before = job / "before.json"
    before.hardlink_to(job / "train.json")
    for again in (None, str(target), "../target"):
        assert stages_of(job, again).names.model_folder == target
    assert not before.samefile(job / "train.json"), "written in place"
    assert stages_of(job, "smollm2-135m").model is None  # nothing came of the first one yet
    (job / "data").mkdir()
    with pytest.raises(UsageError, match=r"a training for .*target: choose another"):
        stages_of(job, "smollm2-135m")


def test_the_embedded_target_may_be_left_out_or_named(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"model": null}')
    (tmp_path / "run").mkdir()
    assert stages_of(tmp_path, "smollm2-135m").model is stages_of(tmp_path).model is None
    with pytest.raises(UsageError, match="a training for smollm2-135m: choose another"):
        stages_of(tmp_path, "org/other")


def test_the_target_is_in_memory_once(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = stages_of(tmp_path / "job", str(target))
    alone = weakref.ref(stages.target()[0].target.model)
    still: list[Any] = []

    def load(*_: object) -> Pair:
        still.append(alone())
        return tiny_pair()

    monkeypatch.setattr(stages_module, "load_pair", load)
    stages.with_drafter(tmp_path)
    assert still == [None]


def test_a_recipe_that_asks_for_other_data_has_it_prepared(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    asked: dict[str, Any] = {"topics": 3, "own": 2}
    (tmp_path / "data").mkdir()
    manifest = {"settings": to_json(gather(PrepareSettings, asked))}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest))
    assert stages_of(tmp_path).has_data
    for topics in (3, 4):
        recipe.write_text(json.dumps({"prepare": {**asked, "topics": topics}}))
        assert stages_of(tmp_path, config=recipe).has_data == (topics == 3)


def test_data_of_a_run_of_which_nothing_came_is_not_counted_on(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "step-0000005").mkdir(parents=True)
    (tmp_path / "run" / "settings.json").write_text('{"data": ["gone.jsonl"]}')
    assert stages_of(tmp_path).has_data
    (tmp_path / "run" / "checkpoints" / "step-0000005").rmdir()
    assert not stages_of(tmp_path).has_data


def test_every_setting_is_a_flag_with_its_default_in_the_help() -> None:
    for stage in STAGES.values():
        flags = {flag.name: flag for flag in flags_of(stage)}
        assert flags.keys() == stage.known().keys()
        for name, flag in flags.items():
            default, [option] = getattr(stage, name), flag.annotation.__metadata__
            assert flag.default is None
            assert default is None or f"(default: {default})" in option.help


def test_several_numbers_come_with_commas() -> None:
    assert parsed(RunSettings, {"taps": "1,8,14", "layers": 2, "data": []}) == {
        "taps": [1, 8, 14],
        "layers": 2,
    }
    assert parsed(EvalSettings, {"temperature": "0,0.7"}) == {"temperature": [0.0, 0.7]}
    for stage, name in ((RunSettings, "taps"), (EvalSettings, "temperature")):
        with pytest.raises(UsageError, match=f"--{name}"):
            parsed(stage, {name: "one"})


def test_what_is_left_is_told_from_the_pace_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = Pace()
    assert not pace.due(100)
    assert pace.left(100, 400) == ""
    now = 60.0
    assert pace.due(200)
    assert pace.rate(200) == pytest.approx(100 / 60)
    assert pace.left(200, 400) == " · about 2 min left"
    assert pace.left(400, 400) == ""
