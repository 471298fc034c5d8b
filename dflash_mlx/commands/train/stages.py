"""What all stages of a training share: the folder, the recipe, and the target, loaded once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...backend import Backend
from ...errors import DFlashError, UsageError
from ...hub.pairs import PairFolders, resolve_pair
from ...model_folder import read_json
from ...pair import Pair, load_pair
from ...training.checkpoint import DRAFTER, checkpoints
from ...training.corpus import MANIFEST, fingerprint
from ...training.settings import read_recipe
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


class Stages:
    """What the stages of one call share: the place, the recipe, and the target, loaded once."""

    def __init__(self, job: Job, backend: Backend):
        self.place = Place(job.folder or _FOLDER)
        self.recipe = read_recipe(job.config) if job.config else {}
        self.backend = backend
        self._dtype = job.dtype
        self._model = self._remembered(job.model)
        self._loaded: tuple[Pair, str] | None = None

    @property
    def model(self) -> str | None:
        """The target's name; None is the embedded one."""
        return self._model

    def target(self) -> tuple[Pair, str]:
        """The target, without a drafter, and its fingerprint."""
        if self._loaded is None:
            silence_libraries()
            with setup_progress() as tell:
                names = resolve_pair(self._model, None, tell)
            pair = load_pair(names, self._dtype, self.backend)
            self._loaded = pair, fingerprint(names.model_folder)
            for note in pair.configuration.notes:
                say(f"note: {note}")
        return self._loaded

    def with_drafter(self, folder: Path) -> Pair:
        """The target with the drafter in a folder."""
        silence_libraries()
        names = resolve_pair(self._model, None)
        both = PairFolders(
            names.model,
            names.model_folder,
            str(folder),
            folder,
            thinking=names.thinking,
            chosen=True,
        )
        return load_pair(both, self._dtype, self.backend)

    @property
    def has_data(self) -> bool:
        """Whether there is something to train on."""
        return (self.place.data / MANIFEST).exists() or "data" in self.section("run")

    @property
    def is_exported(self) -> bool:
        """Whether there is an export in its usual place."""
        return (self.place.root / "export").exists()

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
        note = self.place.root / "train.json"
        known = read_json(note)["model"] if note.exists() else model
        if model is not None and model != known:
            raise UsageError(
                f"{self.place.root} holds a training for {known or 'smollm2-135m'}: choose another"
                " --folder."
            )
        self.place.root.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"model": known}) + "\n", encoding="utf-8")
        return cast("str | None", known)
