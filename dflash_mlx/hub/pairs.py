"""Which folders make a pair: the names that a person gives, resolved for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .embedded import SetupProgress, drafter_folder
from .resolve import Resolved, resolve

AUTO = "auto"


@dataclass(frozen=True)
class PairFolders:
    """Local folders of a pair and the names to show for them; no drafter means plain decoding.

    `note` is a line for a person who might have expected a drafter.
    """

    model: str
    model_folder: Path
    draft_model: str | None = None
    draft_folder: Path | None = None
    note: str | None = None


def resolve_pair(
    model: str | Path | None,
    draft_model: str | Path | None = AUTO,
    progress: SetupProgress | None = None,
) -> PairFolders:
    """Find both halves, setting up or downloading what is not there.

    `draft_model` "auto" is the drafter that is known for the model, if any; None is none; a name
    that cannot be had is an error, never plain decoding. Raises DFlashError.
    """
    target = resolve(model, "target", progress)
    if draft_model is None:
        return PairFolders(target.name, target.folder)
    if draft_model != AUTO:
        drafter = resolve(draft_model, "drafter", progress)
        return PairFolders(target.name, target.folder, drafter.name, drafter.folder)
    folder = known_drafter(target)
    if folder is None:
        note = f"no drafter is known for {target.name}: decoding plainly (or give --draft-model)"
        return PairFolders(target.name, target.folder, note=note)
    return PairFolders(target.name, target.folder, folder.name, folder)


def known_drafter(target: Resolved) -> Path | None:
    """The folder of the drafter that belongs to a target, if one is known."""
    return drafter_folder() if target.kind == "embedded" else None
