"""What all stages of a training share: the folder, the recipe, and the target, loaded once."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...backend import Backend
from ...errors import DFlashError, UsageError
from ...hub.embedded import NAME
from ...hub.pairs import PairFolders, resolve_pair
from ...model_folder import read_json
from ...pair import Pair, load_pair
from ...training.checkpoint import DRAFTER, checkpoints
from ...training.corpus import MANIFEST, Corpus, fingerprint, read_corpus, read_manifest
from ...training.run import noted_settings
from ...training.settings import PrepareSettings, RunSettings, gather, read_recipe, to_json
from ...whole_file import write_whole
from ..loading import setup_progress, silence_libraries
from .app import Job
from .progress import say

_FOLDER = Path("drafter-training")


@dataclass(frozen=True)
class Place:
    """Where a training's parts are kept."""

    root: Path

    @property
    def data(self) -> Path:
        """What `prepare` writes."""
        return self.root / "data"

    @property
    def run(self) -> Path:
        """What `run` writes."""
        return self.root / "run"

    @property
    def figures(self) -> Path:
        """What `eval` measured."""
        return self.root / "figures.json"

    @property
    def note(self) -> Path:
        """Which target the folder is for."""
        return self.root / "train.json"


class Stages:
    """What the stages of one call share: the place, the recipe, and the target, loaded once."""

    def __init__(self, job: Job, backend: Backend):
        self.place = Place(job.folder or _FOLDER)
        self.recipe = read_recipe(job.config) if job.config else {}
        self.backend = backend
        self._dtype = job.dtype
        self.model = self._remembered(job.model)
        self._loaded: tuple[Pair, str] | None = None

    @cached_property
    def names(self) -> PairFolders:
        """The target's folder. Once it is found, the training's folder is for no other target."""
        silence_libraries()
        with setup_progress() as tell:
            names = resolve_pair(self.model, None, tell)
        self.place.root.mkdir(parents=True, exist_ok=True)
        write_whole(self.place.note, json.dumps({"model": self.model}) + "\n")
        return names

    def target(self) -> tuple[Pair, str]:
        """The target, without a drafter, and its fingerprint."""
        if self._loaded is None:
            pair = load_pair(self.names, self._dtype, self.backend)
            self._loaded = pair, fingerprint(self.names.model_folder)
            _tell_notes(pair)
        return self._loaded

    def with_drafter(self, folder: Path) -> Pair:
        """The target with the drafter in a folder; the target alone is dropped before."""
        both = PairFolders(
            self.names.model,
            self.names.model_folder,
            str(folder),
            folder,
            thinking=self.names.thinking,
            chosen=True,
        )
        self._loaded = None
        gc.collect()  # a large model fits once
        pair = load_pair(both, self._dtype, self.backend)
        _tell_notes(pair)
        return pair

    @property
    def has_data(self) -> bool:
        """Whether there is what to train on: named, or prepared as the recipe asks for."""
        begun = checkpoints(self.place.run)  # else nothing came of what is noted
        if "data" in self.section("run") or (begun and self.noted.get("data")):
            return True
        if not (self.place.data / MANIFEST).exists():
            return False
        done = read_manifest(self.place.data).get("settings", {})
        asked = to_json(gather(PrepareSettings, self.section("prepare")))
        return all(done.get(name) == asked[name] for name in self.section("prepare"))

    @property
    def noted(self) -> dict[str, Any]:
        """What the run was begun with; empty where there is none."""
        return noted_settings(self.place.run)

    @property
    def data(self) -> list[Path]:
        """The files and folders that the run was trained on."""
        return gather(RunSettings, self.noted).data or [self.place.data]

    def corpus(self, vocabulary: int) -> Corpus:
        """The conversations of the run, on the sides that it had them."""
        settings = gather(RunSettings, self.noted)
        return read_corpus(
            self.data,
            vocabulary,
            "",
            heldout=settings.heldout,
            max_length=settings.max_length,
            keep_loops=settings.keep_loops,
        )

    def best(self) -> Path:
        """The run's best drafter, else its last. Raises DFlashError where there is none."""
        run = self.place.run
        saved = [place / DRAFTER for place in checkpoints(run)[::-1]]
        for folder in (run / "best", *saved):
            if folder.exists():
                return folder
        raise DFlashError(f"There is no trained drafter in {run}: `dflash-mlx train run` first.")

    def section(self, name: str) -> dict[str, Any]:
        """What the recipe says of a stage."""
        return self.recipe.get(name, {})

    def _remembered(self, model: str | None) -> str | None:
        """The model that the folder was begun with; a different one is an error."""
        if not self.place.note.exists():
            return _spelled(model)
        known = _spelled(read_json(self.place.note, "choose another --folder")["model"])
        if model is not None and _spelled(model) != known:
            if not (self.place.data.exists() or self.place.run.exists()):
                return _spelled(model)  # nothing came of the first try
            raise UsageError(
                f"{self.place.root} holds a training for {known or NAME}: choose another --folder."
            )
        return known


def _tell_notes(pair: Pair) -> None:
    for note in pair.configuration.notes:
        say(f"note: {note}")


def _spelled(model: str | None) -> str | None:
    """The one spelling of a target: a whole path, a hub name, or None for the embedded one."""
    if model is None or model == NAME:
        return None
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
