"""A run in its folder: begun or resumed, stepped, evaluated, saved, and written down.

settings.json    what the run was begun with
metrics.jsonl    one JSON object a step, and one an evaluation
checkpoints/     see `checkpoint`
best/            the drafter that did best on held-out conversations; the newest, if none is walked
curves.png       where matplotlib is installed
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dtypes import dtype_name
from ..errors import UsageError
from ..hub.resolve import resolve
from ..hub.store import atomic_folder
from ..model_folder import read_json
from ..pair import Pair
from ..target.model import Target
from ..whole_file import write_whole
from . import memory
from .adopted import adopted_config
from .architecture import check_fits, make_drafter, new_config
from .checkpoint import (
    DRAFTER,
    checkpoints,
    load_checkpoint,
    read_state,
    save_checkpoint,
    write_drafter,
)
from .conversations import Conversation, digest
from .corpus import Corpus
from .exponential import exponential
from .features import CachedFeatures, ComputeTaps, Features, OnlineFeatures, compute_taps
from .initial import Weights, drafter_weights, flat, random_weights, target_weights
from .plots import write_plot
from .second import check_candidates
from .settings import RunSettings, gather, to_json
from .trainer import StepReport, Trainer
from .walking import Acceptance, Walker

CHANGEABLE = {
    "data", "epochs", "steps", "learning_rate", "warmup", "clip", "features", "head_rows",
    "eval_every", "eval_conversations", "save_every",
}  # fmt: skip
"""Settings that a resumed run may have otherwise; `data` may only be named differently, which
`_check_subject` sees to."""


@dataclass(frozen=True)
class EvalReport:
    """Walked acceptance on some conversations of each side; `best`: this drafter was kept."""

    step: int
    train: Acceptance
    heldout: Acceptance
    seconds: float
    best: bool

    @property
    def deciding(self) -> Acceptance:
        """The side that decides which drafter is kept: held out, where anything is."""
        return self.heldout if self.heldout.accepted else self.train


def noted_settings(folder: Path) -> dict[str, Any]:
    """What the run in `folder` was begun with; empty where there is none."""
    note = folder / "settings.json"
    return read_json(note, "choose another --folder") if note.exists() else {}


def settle(folder: Path, *layers: Mapping[str, Any]) -> RunSettings:
    """The settings of the run in `folder`: those noted there, then `layers`, later ones winning.

    Raises UsageError where a run that is under way would change what it was begun with.
    """
    noted = noted_settings(folder)
    begun = bool(checkpoints(folder))
    settings = gather(RunSettings, *map(_either, (noted if begun else {}, *layers)))
    if begun:
        now = to_json(settings)
        other = [n for n, v in noted.items() if n not in CHANGEABLE and now.get(n) != v]
        if other:
            begun_with = ", ".join(f"{name} {json.dumps(noted[name])}" for name in other)
            raise UsageError(
                f"The run in {folder} was begun with {begun_with}: leave the setting out to go on"
                " with it, or choose another folder."
            )
    return settings


class Run:
    """One run. `notes` are lines for a person; `step` counts the steps done."""

    def __init__(
        self,
        pair: Pair,
        settings: RunSettings,
        folder: Path,
        corpus: Corpus,
        identity: str,
        compute: ComputeTaps = compute_taps,
    ):
        self.pair = pair
        self.settings = settings
        self.folder = folder
        self.corpus = corpus
        self.identity = identity
        self.best = 0.0
        self._last = checkpoints(folder)[-1:]
        self._subject = {
            "conversations": digest(corpus.train),
            "target": identity,
            "dtype": dtype_name(pair.target.dtype),
        }
        self._check_subject()
        self.config = self._config()
        check_fits(self.config, pair)
        check_candidates(self.config, settings.frequent_tokens)
        taps = self.config["dflash_config"]["target_layer_ids"]
        self.target = Target(pair.target.model, pair.target.config, taps)
        weights = parameters(self.config)
        self.needed = memory.estimate(pair, self.config, weights, settings, corpus.train)
        memory.check(self.needed, memory.available())
        self.features: Features = OnlineFeatures(self.target)
        if settings.features == "cached":
            self.features = CachedFeatures(folder, corpus.train, self.target, compute)

    def begin(self, make: type[Trainer] = Trainer) -> Trainer:
        """The trainer, at the run's last checkpoint or at its first step; makes the folder.

        Features that are to be cached must be there: see `CachedFeatures.build`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.settings.data and [path.absolute() for path in self.settings.data]
        note = json.dumps(to_json(dataclasses.replace(self.settings, data=data)), indent=2)
        write_whole(self.folder / "settings.json", note + "\n")
        drafter = make_drafter(self.config)
        drafter.set_dtype(self.target.dtype)
        checkpoint = load_checkpoint(self._last[0]) if self._last else None
        trainer = make(
            self.target,
            drafter,
            checkpoint.weights if checkpoint else self._first_weights(),
            self.corpus.train,
            self.features,
            self.settings,
            exponential(self.pair.configuration.device, self.pair.configuration.compiled),
        )
        if checkpoint:
            trainer.resume(checkpoint)
            self.best = float(checkpoint.state["best"])
        self._forget(trainer.step_number)
        return trainer

    def go(
        self, trainer: Trainer, stop: Callable[[], bool] = lambda: False
    ) -> Generator[StepReport | EvalReport]:
        """Step to the end, or until `stop`: then a checkpoint is saved, and all is done.

        An evaluation that a stop left out is made up for at first.
        """
        if self._evaluation_due(trainer):
            report = self._evaluate(trainer)
            self._save(trainer)
            yield report
        while trainer.step_number < trainer.steps:
            step = trainer.step()
            self._write({"kind": "step", **dataclasses.asdict(step)})
            yield step
            last, stopping = trainer.step_number == trainer.steps, stop()
            if not stopping and self._evaluation_due(trainer):
                yield self._evaluate(trainer)
            if step.step % self.settings.save_every == 0 or last or stopping:
                self._save(trainer)
            if stopping:
                return
        if not self.best or not (self.folder / "best").exists():
            self._keep_best(trainer)

    def records(self) -> list[dict[str, Any]]:
        """What the run has written down so far."""
        path = self.folder / "metrics.jsonl"
        records: list[dict[str, Any]] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                records.append(json.loads(line))
            except ValueError:  # a killed process left half a line
                break
        return records

    def plot(self) -> bool:
        """Draw the curves; False without matplotlib, and before the first step."""
        records = self.records()
        return bool(records) and write_plot(self.folder / "curves.png", records)

    def _check_subject(self) -> None:
        """Raise UsageError where the run was begun on something else.

        Order, anchors and schedule follow from the conversations, so with others a resumed run
        would be neither of the two. Runs of before the note was kept go on.
        """
        noted = read_state(self._last[0]).get("subject", {}) if self._last else {}
        other = [name for name, value in noted.items() if self._subject.get(name) != value]
        if other:
            raise UsageError(
                f"The run in {self.folder} was begun with other {', '.join(other)}: put back what"
                " it was begun with to go on, or choose another --folder."
            )

    def _config(self) -> dict[str, Any]:
        """Of a checkpoint, of the drafter to begin with, or a new one."""
        if self._last:
            return read_json(self._last[0] / DRAFTER / "config.json")
        if self.settings.init in ("random", "target"):
            return new_config(self.pair, self.settings, self.corpus.thinking)
        return adopted_config(self.settings, self.pair.target, self.corpus.thinking)

    def _first_weights(self) -> Weights:
        """As `settings.init` says."""
        drafter, seed = make_drafter(self.config), self.settings.seed
        if self.settings.init == "random":
            return random_weights(drafter, self.target, seed)
        if self.settings.init == "target":
            return target_weights(drafter, self.target, seed)
        folder = resolve(self.settings.init, "drafter").folder
        return drafter_weights(folder, drafter, self.target, seed)

    def _evaluate(self, trainer: Trainer) -> EvalReport:
        """Walk some greedy conversations of each side; keep the drafter if it is the best yet.

        Where nothing is walked, no drafter is known to be better, and the newest is kept.
        """
        begin = time.perf_counter()
        walker = Walker(self.target, trainer.trained(), self.pair.stop_tokens)
        count = self.settings.eval_conversations
        sides = [
            walker.walk_all(greedy(side)[:count])
            for side in (self.corpus.train, self.corpus.heldout)
        ]
        report = EvalReport(
            trainer.step_number, sides[0], sides[1], time.perf_counter() - begin, False
        )
        walked = report.deciding
        if not walked.accepted or walked.length > self.best:
            report = dataclasses.replace(report, best=True)
            self.best = walked.length if walked.accepted else 0.0
            self._keep_best(trainer)
        self._write({"kind": "eval", "step": report.step, **_summary(report)})
        return report

    def _evaluation_due(self, trainer: Trainer) -> bool:
        """Whether the steps done so far ask for an evaluation that is not written down yet."""
        step, every = trainer.step_number, self.settings.eval_every
        if not step or not every or (step % every and step < trainer.steps):
            return False
        return not any(r["kind"] == "eval" and r["step"] == step for r in self.records())

    def _save(self, trainer: Trainer) -> None:
        state = {"best": self.best, "subject": self._subject}
        save_checkpoint(self.folder, self.config, trainer.checkpoint(**state))

    def _keep_best(self, trainer: Trainer) -> None:
        with atomic_folder(self.folder / "best", replace=True) as new:
            write_drafter(new, self.config, trainer.weights)

    def _write(self, record: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _forget(self, step: int) -> None:
        """Drop what was written of steps that will be done again."""
        kept = [record for record in self.records() if record["step"] <= step]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        write_whole(self.folder / "metrics.jsonl", text)


def _either(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Epochs without steps are instead of the steps that an earlier layer asked for."""
    return {"steps": None, **layer} if "epochs" in layer else layer


def greedy(conversations: list[Conversation]) -> list[Conversation]:
    """Those answered at temperature 0: of others, a walk says nothing about serving."""
    return [item for item in conversations if item.temperature == 0]


def parameters(config: Mapping[str, Any]) -> int:
    """How many weights a drafter of this config has."""
    return sum(array.size for array in flat(make_drafter(config).parameters()).values())


def _summary(report: EvalReport) -> dict[str, Any]:
    return {
        name: summarize(side) if side.accepted else None
        for name, side in (("train", report.train), ("heldout", report.heldout))
    }


def summarize(acceptance: Acceptance) -> dict[str, Any]:
    """Figures of a walk, for files."""
    return {
        "acceptance_length": acceptance.length,
        "by_position": acceptance.by_position,
        "rounds": len(acceptance.accepted),
        "anchor_accept": acceptance.anchor_accept,
    }
