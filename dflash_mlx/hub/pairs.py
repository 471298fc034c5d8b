"""Which folders make a pair: the names that a person gives, resolved for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import embedded
from .embedded import SetupProgress
from .resolve import Resolved, resolve


@dataclass(frozen=True)
class PairFolders:
    """Local folders of a pair and the names to show for them; no drafter means plain decoding."""

    model: str
    model_folder: Path
    draft_model: str | None = None
    draft_folder: Path | None = None


def resolve_pair(
    model: str | Path | None,
    draft_model: str | Path | None = "auto",
    progress: SetupProgress | None = None,
) -> PairFolders:
    """Find, fetch or make the folders of a pair.

    `model` None is the embedded target. `draft_model` None is plain decoding, "auto" the drafter
    that is known to fit the model, if any. Raises DFlashError; a drafter that was asked for and
    cannot be had is an error, never plain decoding.
    """
    target = resolve(model, "target", progress)
    drafter = _drafter_of(target) if draft_model == "auto" else None
    if draft_model not in (None, "auto"):
        drafter = resolve(draft_model, "drafter", progress)
    return PairFolders(
        model=target.name,
        model_folder=target.folder,
        draft_model=drafter.name if drafter else None,
        draft_folder=drafter.folder if drafter else None,
    )


def _drafter_of(target: Resolved) -> Resolved | None:
    """The known drafter of a target; only the embedded pair is known yet."""
    return resolve(embedded.NAME, "drafter") if target.kind == "embedded" else None
