"""A run in its folder: what it writes, how it stops, goes on, and refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.commands.train.run import _train
from dflash_mlx.drafter import load_drafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.training import memory
from dflash_mlx.training.checkpoint import checkpoints, load_checkpoint
from dflash_mlx.training.conversations import Conversation, conversation
from dflash_mlx.training.corpus import Corpus, fingerprint, read_corpus
from dflash_mlx.training.features import CachedFeatures
from dflash_mlx.training.initial import flat
from dflash_mlx.training.plots import curves, sparkline, write_plot
from dflash_mlx.training.run import EvalReport, Run, settle
from dflash_mlx.training.settings import RunSettings, to_json
from dflash_mlx.training.trainer import NotFinite, StepReport, Trainer
from tests.tiny_folders import tiny_pair
from tests.training.tiny import talk

SETTINGS = RunSettings(
    layers=1, anchors=4, batch_tokens=128, steps=6, save_every=2, eval_every=3, eval_conversations=1
)
CORPUS = Corpus([talk(5, 30, seed=seed) for seed in range(8)], [talk(5, 12, seed=99)])


def begun(folder: Path, settings: RunSettings = SETTINGS, corpus: Corpus = CORPUS) -> Run:
    return Run(tiny_pair(), settings, folder, corpus, "tiny")


def train(run: Run, stop_behind: int | None = None) -> list[StepReport | EvalReport]:
    """The reports of a run, to its end or stopped behind a step."""
    trainer = run.begin()
    reports = []
    for report in run.go(trainer, lambda: trainer.step_number == stop_behind):
        reports.append(report)
    return reports


def losses(reports: list[StepReport | EvalReport]) -> dict[int, float]:
    return {report.step: report.loss for report in reports if isinstance(report, StepReport)}


def test_a_stopped_run_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    whole = losses(train(begun(tmp_path / "whole")))
    stopped = losses(train(begun(tmp_path / "parts"), stop_behind=3))
    resumed = losses(train(begun(tmp_path / "parts")))
    assert list(stopped) == [1, 2, 3]
    assert list(resumed) == [4, 5, 6]
    assert stopped | resumed == whole
    one, two = (
        load_checkpoint(checkpoints(tmp_path / name)[-1]).weights for name in ("whole", "parts")
    )
    assert all(mx.array_equal(one[name], two[name]) for name in one)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = begun(tmp_path)
    trainer = run.begin()
    going = run.go(trainer)
    while trainer.step_number < 3:
        next(going)
    going.close()  # killed behind step 3: the last checkpoint is step 2
    assert [place.name for place in checkpoints(tmp_path)] == ["step-0000002"]
    again = losses(train(begun(tmp_path)))
    assert list(again) == [3, 4, 5, 6]
    steps = [r["step"] for r in begun(tmp_path).records() if r["kind"] == "step"]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_is_a_drafter_and_holds_no_code(tmp_path: Path) -> None:
    train(begun(tmp_path))
    last = checkpoints(tmp_path)[-1]
    assert sorted(path.name for path in last.iterdir()) == [
        "drafter",
        "optimizer.safetensors",
        "state.json",
    ]
    assert sorted(path.name for path in (last / "drafter").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert load_drafter(last / "drafter").dtype == mx.float32
    assert len(checkpoints(tmp_path)) == 2


def test_a_run_on_other_conversations_or_another_target_does_not_go_on(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=1)
    grown = Corpus([*CORPUS.train, talk(5, 30, seed=50)], CORPUS.heldout)
    with pytest.raises(UsageError, match=r"other conversations: .* another --folder"):
        begun(tmp_path, corpus=grown)
    with pytest.raises(UsageError, match="other target: "):
        Run(tiny_pair(), SETTINGS, tmp_path, CORPUS, "another")
    state = checkpoints(tmp_path)[-1] / "state.json"
    noted = json.loads(state.read_text())
    noted["subject"]["dtype"] = "bfloat16"
    state.write_text(json.dumps(noted))
    with pytest.raises(UsageError, match="other dtype: "):
        begun(tmp_path)


def test_a_run_of_before_this_was_noted_goes_on(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=5)
    state = checkpoints(tmp_path)[-1] / "state.json"
    state.write_text(json.dumps({"step": 5, "best": 0.0}))
    assert list(losses(train(begun(tmp_path)))) == [6]


@pytest.mark.parametrize("step", [3, 6])
def test_an_evaluation_that_a_stop_left_out_is_made_up_for(tmp_path: Path, step: int) -> None:
    """Of the last step too: all that is left to do is to evaluate."""
    train(begun(tmp_path), stop_behind=step)
    steps = [r["step"] for r in begun(tmp_path).records() if r["kind"] == "eval"]
    assert step not in steps
    train(begun(tmp_path))
    steps = [r["step"] for r in begun(tmp_path).records() if r["kind"] == "eval"]
    assert steps == [3, 6]
    assert load_checkpoint(checkpoints(tmp_path)[-1]).state["best"] >= 1
    train(begun(tmp_path))
    assert [r["kind"] for r in begun(tmp_path).records()].count("eval") == 2


def test_where_nothing_can_be_walked_the_newest_drafter_is_kept(tmp_path: Path) -> None:
    sampled = Corpus([talk(5, 30, seed=seed, temperature=0.7) for seed in range(8)], [])
    reports = train(begun(tmp_path, corpus=sampled))
    assert [r.best for r in reports if isinstance(r, EvalReport)] == [True, True]
    kept = flat(load_drafter(tmp_path / "best").parameters())
    last = load_checkpoint(checkpoints(tmp_path)[-1]).weights
    assert all(mx.array_equal(kept[name], last[name]) for name in last)


def test_a_full_disk_is_one_sentence_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    train(begun(tmp_path), stop_behind=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DFlashError, match=r"safetensors could not be written.* free some"):
            train(begun(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [place.name for place in checkpoints(tmp_path)] == ["step-0000002"]
    assert load_checkpoint(checkpoints(tmp_path)[-1]).state["step"] == 2


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    train(begun(tmp_path))
    last = checkpoints(tmp_path)[-1]
    (last / "optimizer.safetensors").write_bytes(b"no")
    with pytest.raises(DFlashError, match="step-0000006"):
        load_checkpoint(last)


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = begun(tmp_path)
    trainer = run.begin()
    going = run.go(trainer)
    while trainer.step_number < 3:
        next(going)
    trainer.weights["fc.weight"] = mx.full(trainer.weights["fc.weight"].shape, math.nan)
    with pytest.raises(NotFinite):
        list(going)
    good = load_checkpoint(checkpoints(tmp_path)[-1])
    assert good.state["step"] == 2
    assert all(mx.isfinite(array).all() for array in good.weights.values())


def test_metrics_are_written_for_every_step_and_evaluation(tmp_path: Path) -> None:
    train(begun(tmp_path))
    records = begun(tmp_path).records()
    steps = [record for record in records if record["kind"] == "step"]
    assert {"loss", "gradient_norm", "learning_rate", "anchor_accept", "tokens"} <= steps[0].keys()
    assert {"target_seconds", "drafter_seconds", "head_seconds"} <= steps[0].keys()
    evals = [record for record in records if record["kind"] == "eval"]
    assert [record["step"] for record in evals] == [3, 6]
    for side in ("train", "heldout"):
        assert evals[0][side]["acceptance_length"] >= 1
        assert len(evals[0][side]["by_position"]) == 7


def test_half_a_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    train(begun(tmp_path))
    assert [r["step"] for r in begun(tmp_path).records() if r["kind"] == "step"] == [*range(1, 7)]


def test_a_run_under_way_refuses_another_shape(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=2)
    with pytest.raises(UsageError, match="anchors"):
        settle(tmp_path, {"anchors": 9})
    assert settle(tmp_path, {}).anchors == SETTINGS.anchors
    assert settle(tmp_path, {"steps": 9}).steps == 9


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    train(begun(tmp_path))
    longer = losses(train(begun(tmp_path, settle(tmp_path, {"steps": 8}))))
    assert list(longer) == [7, 8]


def test_epochs_that_are_asked_for_later_are_instead_of_steps(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=1)
    longer = settle(tmp_path, {"epochs": 5.0})
    assert (longer.steps, longer.epochs) == (None, 5.0)
    assert settle(tmp_path, {"steps": 9}, {"epochs": 5.0}).steps is None
    assert settle(tmp_path, {"epochs": 5.0}, {"steps": 9}).steps == 9
    assert settle(tmp_path, {"epochs": 5.0, "steps": 9}).steps == 9


def test_notes_of_a_run_are_whole_or_as_they_were(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=1)
    for name in ("settings.json", "metrics.jsonl"):
        (tmp_path / f"{name}.before").hardlink_to(tmp_path / name)
    begun(tmp_path, replace(SETTINGS, steps=7)).begin()
    for name in ("settings.json", "metrics.jsonl"):
        assert not (tmp_path / name).samefile(tmp_path / f"{name}.before"), "written in place"
    assert settle(tmp_path).steps == 7
    assert len(begun(tmp_path).records()) == 1


def test_a_drafter_is_trained_on(tmp_path: Path) -> None:
    train(begun(tmp_path / "first"))
    best = tmp_path / "first" / "best"
    run = begun(tmp_path / "second", replace(SETTINGS, init=str(best)))
    trainer = run.begin()
    before = flat(load_drafter(best).parameters())
    assert all(mx.array_equal(trainer.weights[name], before[name]) for name in before)


def test_a_drafter_of_another_target_is_refused(tmp_path: Path) -> None:
    train(begun(tmp_path / "first"))
    config = tmp_path / "first" / "best" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_target_layers": 9}))
    with pytest.raises(DFlashError, match="9 layers"):
        begun(tmp_path / "second", replace(SETTINGS, init=str(config.parent)))


@pytest.mark.parametrize("word", ["sample_from_anchor", "rows_in_doubt", "shift_label"])
def test_a_drafter_of_other_rows_is_refused(tmp_path: Path, word: str) -> None:
    """Its rows would be trained for the tokens that they do not draft, and exported so."""
    train(begun(tmp_path / "first", replace(SETTINGS, steps=1)))
    config = tmp_path / "first" / "best" / "config.json"
    content = json.loads(config.read_text())
    content["dflash_config"][word] = True
    config.write_text(json.dumps(content))
    with pytest.raises(DFlashError, match=r"anchor \+ j \+ 1, or may"):
        begun(tmp_path / "second", replace(SETTINGS, init=str(config.parent)))


def test_cached_features_train_like_online_ones(tmp_path: Path) -> None:
    online = losses(train(begun(tmp_path / "online")))
    run = begun(tmp_path / "cached", replace(SETTINGS, features="cached"))
    run.folder.mkdir()
    assert isinstance(run.features, CachedFeatures)
    list(run.features.build("tiny", 128))
    cached = losses(train(run))
    assert cached[1] == pytest.approx(online[1], rel=1e-2)


def peak_of_a_step(folder: Path, settings: RunSettings) -> tuple[int, int]:
    """Bytes that the second step takes at its peak, and the estimate."""
    run = begun(folder, settings, Corpus([talk(20, 220, seed=seed) for seed in range(6)], []))
    trainer = run.begin()
    trainer.step()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    trainer.step()
    return mx.get_peak_memory() - before, run.needed


BROAD = replace(SETTINGS, anchors=48, batch_tokens=512, steps=2, eval_every=0)


def test_memory_is_estimated_within_reason(tmp_path: Path) -> None:
    """The estimate must cover what a step takes, and not refuse runs that fit three times over."""
    taken, needed = peak_of_a_step(tmp_path, BROAD)
    assert taken < needed < 3 * taken


def test_logits_are_let_go_of_chunk_by_chunk(tmp_path: Path) -> None:
    """672 rows of 320 logits: 0.86 MB an array, of which the head has several at a time."""
    parts, _ = peak_of_a_step(tmp_path / "parts", replace(BROAD, head_rows=28))
    whole, _ = peak_of_a_step(tmp_path / "whole", replace(BROAD, head_rows=1024))
    assert parts < whole - 1_000_000


def test_a_run_that_cannot_fit_is_refused_with_the_cures() -> None:
    with pytest.raises(DFlashError, match=r"9\.0 GB and 2\.0 GB are free: .*--anchors"):
        memory.check(9 * 10**9, 2 * 10**9)
    memory.check(9 * 10**9, None)
    memory.check(10**9, 2 * 10**9)


def test_a_run_is_refused_before_it_begins_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1)
    with pytest.raises(DFlashError, match="GB are free"):
        begun(tmp_path)


def test_the_machine_tells_what_is_free() -> None:
    free = memory.available()
    assert free is not None
    assert 0 < free < 2**50


def write(path: Path, *items: Conversation) -> Path:
    path.write_text("".join(item.to_json() + "\n" for item in items))
    return path


def read(*paths: Path, **changes: Any) -> Corpus:
    options: dict[str, Any] = {"heldout": 0.2, "max_length": 100, "keep_loops": False}
    return read_corpus(paths, 96, "tiny", **{**options, **changes})


def test_a_file_is_split_cut_and_cleaned(tmp_path: Path) -> None:
    circles = conversation([*range(5), *([7] * 90)], [False] * 5 + [True] * 90)
    talks = [talk(5, 200, seed=seed) for seed in range(40)]
    silent = talk(5, 1, seed=77)
    corpus = read(write(tmp_path / "talks.jsonl", *talks, circles, silent))
    everything = [*corpus.train, *corpus.heldout]
    assert len(everything) == 41
    assert corpus.heldout
    assert corpus.longest == 100
    [mended] = [item for item in everything if item.prompt == circles.prompt]
    assert mended.assistant.sum() == 16
    assert any("talks.jsonl" in note for note in corpus.notes)


def test_a_folder_brings_its_own_split_and_says_whose_it_is(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", talk(5, 20, seed=1), talk(5, 20, seed=2))
    write(tmp_path / "heldout.jsonl", talk(5, 20, seed=3))
    manifest = {"target_fingerprint": "other", "settings": {"thinking": False}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    corpus = read(tmp_path)
    assert (len(corpus.train), len(corpus.heldout)) == (2, 1)
    assert corpus.thinking is False
    assert any("another target" in note for note in corpus.notes)
    (tmp_path / "manifest.json").write_text(json.dumps({"target_fingerprint": "tiny"}))
    assert read(tmp_path).notes == ()


def test_a_fine_tune_of_layers_in_the_middle_is_another_target(tmp_path: Path) -> None:
    """As a fused LoRA is, whose embedding and last layer are the model's own."""
    weights = bytearray(40 << 20)
    (tmp_path / "model.safetensors").write_bytes(weights)
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    weights[15 << 20 : 16 << 20] = b"1" * (1 << 20)
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert fingerprint(tmp_path) != before


def test_what_one_file_holds_out_no_other_trains_on(tmp_path: Path) -> None:
    talks = [talk(5, 20, seed=seed) for seed in range(30)]
    first = write(tmp_path / "first.jsonl", *talks)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "train.jsonl", *talks)
    write(tmp_path / "folder" / "heldout.jsonl")
    corpus = read(first, tmp_path / "folder")
    assert not {item.prompt for item in corpus.train} & {item.prompt for item in corpus.heldout}
    assert corpus.heldout


def test_nothing_to_train_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="nothing to train on"):
        read(write(tmp_path / "empty.jsonl", talk(5, 1)))


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([1, 2, 3, 4], 4) == "▁▃▆█"
    assert sparkline([5.0] * 100, 10) == "▁" * 10
    assert sparkline([]) == ""


def test_curves_in_the_terminal_are_of_the_loss_and_of_what_was_walked() -> None:
    step = {"kind": "step", "step": 1}
    walked = {"kind": "eval", "step": 2, "train": None, "heldout": {"acceptance_length": 1.25}}
    assert curves([]) == []
    assert curves([{**step, "loss": 5.0}, {**step, "loss": 4.0}, walked]) == [
        "loss █▁ 5.00 to 4.00",
        "acceptance length, held out ▁ 1.25 to 1.25",
    ]


def test_curves_are_drawn_of_a_run_that_stops_for_a_number_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Trainer):
        def step(self) -> StepReport:
            if self.step_number == 2:
                raise NotFinite("Step 3: no number.")
            return super().step()

    drawn: list[Path] = []
    monkeypatch.setattr("dflash_mlx.training.run.write_plot", lambda path, _: drawn.append(path))
    with pytest.raises(NotFinite):
        _train(begun(tmp_path), Failing, lambda: False)
    assert drawn == [tmp_path / "curves.png"]
    assert "  loss " in capsys.readouterr().err


def test_curves_are_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    train(begun(tmp_path))
    assert write_plot(tmp_path / "curves.png", begun(tmp_path).records())
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_settings_are_noted_beside_the_run(tmp_path: Path) -> None:
    train(begun(tmp_path), stop_behind=1)
    assert json.loads((tmp_path / "settings.json").read_text()) == to_json(SETTINGS)
