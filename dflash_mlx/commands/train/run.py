"""`train run`: a run described, trained and told about as it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...training import memory
from ...training.alone import alone
from ...training.corpus import read_corpus
from ...training.features import CachedFeatures, ComputeTaps, compute_taps
from ...training.plots import curves
from ...training.run import EvalReport, Run, parameters, settle
from ...training.settings import RunSettings
from ...training.trainer import StepReport, Trainer
from .progress import Pace, acceptance_line, say, stopping
from .stages import Stages


def run(
    stages: Stages,
    given: dict[str, Any],
    make: type[Trainer] = Trainer,
    compute: ComputeTaps = compute_taps,
) -> None:
    """Begin the run, or go on with it; `make` and `compute` do the arithmetic."""
    settings = settle(stages.place.run, stages.section("run"), given)
    pair, identity = stages.target()
    with alone(stages.place.root):
        corpus = read_corpus(
            settings.data or [stages.place.data],
            pair.target.vocab_rows,
            identity,
            heldout=settings.heldout,
            max_length=settings.max_length,
            keep_loops=settings.keep_loops,
        )
        for note in corpus.notes:
            say(f"note: {note}")
        counts = corpus.describe()
        say(
            f"{counts['conversations']:,} conversations, {counts['tokens']:,} tokens,"
            f" {counts['answer_tokens']:,} of them answers;"
            f" {counts['heldout_conversations']:,} conversations held out"
        )
        job = Run(pair, settings, stages.place.run, corpus, identity, compute)
        _describe(job, settings)
        with stopping() as stop:
            _cache_features(job, settings, stop)
            _train(job, make, stop)


def _describe(job: Run, settings: RunSettings) -> None:
    """What is about to happen, before step 1."""
    config = job.config
    taps = ", ".join(map(str, config["dflash_config"]["target_layer_ids"]))
    say(
        f"drafter: {config['num_hidden_layers']} layers, {parameters(config) / 1e6:.1f}M weights,"
        f" blocks of {config['block_size']}, taps {taps} of {config['num_target_layers']}, mask"
        f" {config['dflash_config']['mask_token_id']}, begun from {settings.init}"
    )
    free = memory.available()
    known = f", {free / 1e9:.1f} GB are free" if free is not None else ""
    say(f"memory: about {job.needed / 1e9:.1f} GB beside the target's weights{known}")
    say(
        f"loss: {settings.loss}, weighted mean sum(w CE) / sum(w) over a step · AdamW, peak"
        f" {settings.learning_rate:g}"
    )


def _cache_features(job: Run, settings: RunSettings, stop: Callable[[], bool]) -> None:
    if not isinstance(job.features, CachedFeatures):
        return
    say(f"features: {job.features.nbytes / 1e9:.2f} GB in {job.folder}")
    job.folder.mkdir(parents=True, exist_ok=True)
    pace = Pace()
    for done, total in job.features.build(job.identity, settings.batch_tokens):
        if pace.due(done):
            say(f"features: {done:,} of {total:,} tokens{pace.left(done, total)}")
        if stop():
            raise KeyboardInterrupt


def _train(job: Run, make: type[Trainer], stop: Callable[[], bool]) -> None:
    trainer = job.begin(make)
    if trainer.step_number:
        say(f"going on behind step {trainer.step_number:,} of {trainer.steps:,}")
    say(f"training to step {trainer.steps:,}; Ctrl-C stops behind a step and saves")
    pace, window = Pace(), list[StepReport]()
    pace.due(trainer.step_number)
    try:
        for report in job.go(trainer, stop):
            if isinstance(report, EvalReport):
                _tell_evaluation(report)
                if report.step < trainer.steps:
                    _tell_curves(job)
                continue
            window.append(report)
            if pace.due(report.step) or report.step == trainer.steps:
                say(_progress(window, trainer.steps) + pace.left(report.step, trainer.steps))
                window = []
    finally:  # of a run that went wrong, too
        job.plot()
        _tell_curves(job)
    if stop():
        say(f"stopped behind step {trainer.step_number:,}; the same command goes on")
        raise KeyboardInterrupt
    say(f"the best drafter is in {job.folder / 'best'}")


def _progress(window: list[StepReport], steps: int) -> str:
    """A line on the steps since the last one."""
    last, count = window[-1], len(window)
    seconds = sum(report.seconds for report in window)
    chosen = [r.selector_loss for r in window if r.selector_loss is not None]
    selector = f" · selector {sum(chosen) / count:.3f}" if chosen else ""
    shares = {
        name: sum(getattr(report, f"{name}_seconds") for report in window) / seconds
        for name in ("target", "drafter", "head")
    }
    return (
        f"step {last.step:,} of {steps:,} · loss {sum(r.loss for r in window) / count:.3f}"
        f"{selector} · anchor_accept {sum(r.anchor_accept for r in window) / count:.2f} · gradient"
        f" {last.gradient_norm:.2f} · rate {last.learning_rate:.1e} ·"
        f" {sum(r.tokens for r in window) / seconds:,.0f} tokens/s,"
        f" {sum(r.anchors for r in window) / seconds:,.0f} anchors/s ·"
        + ",".join(f" {name} {share:.0%}" for name, share in shares.items())
    )


def _tell_evaluation(report: EvalReport) -> None:
    for name, side in (("train", report.train), ("held out", report.heldout)):
        if side.accepted:
            best = " · the best yet" if report.best and side is report.deciding else ""
            say(f"  walked, {name}: {acceptance_line(side)}{best}")
    if not report.deciding.accepted:
        say("  nothing to walk, as no answer is greedy: the newest drafter is kept as the best")


def _tell_curves(job: Run) -> None:
    for line in curves(job.records()):
        say(f"  {line}")
