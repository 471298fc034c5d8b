"""Which folders make a pair: the names that a person gives, resolved for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DFlashError
from .embedded import SetupProgress, drafter_folder
from .registry import known_pair, pair_of_drafter
from .resolve import Resolved, resolve

AUTO = "auto"


@dataclass(frozen=True)
class PairFolders:
    """Local folders of a pair and the names to show for them; no drafter means plain decoding.

    `note` is a line for a person who might have expected a drafter. `thinking` is the mode that
    the drafter is known to be trained in, for a folder that does not say. `chosen` says that a
    person named the drafter: then it must draft.
    """

    model: str
    model_folder: Path
    draft_model: str | None = None
    draft_folder: Path | None = None
    note: str | None = None
    thinking: bool | None = None
    chosen: bool = False


def resolve_pair(
    model: str | Path | None,
    draft_model: str | Path | None = AUTO,
    progress: SetupProgress | None = None,
    *,
    root: Path | None = None,
) -> PairFolders:
    """Find both halves, setting up or downloading what is not there.

    `draft_model` "auto" is the drafter that is known for the model; without one that can be had,
    the note says why the pair decodes plainly. None is none; a name that cannot be had is an
    error, never plain decoding. `root` is where the embedded model is kept. Raises DFlashError.
    """
    target = resolve(model, "target", progress, root=root)
    known = known_pair(target.name)  # plainly too, the prompt is the one that drafting would have
    plain = PairFolders(target.name, target.folder, thinking=known.thinking if known else None)
    if draft_model is None:
        return plain
    if draft_model != AUTO:
        return replace(_paired(target, resolve(draft_model, "drafter", progress)), chosen=True)
    try:
        return _paired(target, known_drafter(target, progress))
    except DFlashError as reason:
        return replace(plain, note=f"decoding plainly: {reason}")


def known_drafter(target: Resolved, progress: SetupProgress | None = None) -> Resolved:
    """The drafter that is known for a target, fetched if need be.

    Raises DFlashError where none is known, or it cannot be had.
    """
    if target.kind == "embedded":
        folder = drafter_folder()
        return Resolved(folder, folder.name, "embedded")
    pair = known_pair(target.name)
    if pair is None:
        raise DFlashError(
            f"no drafter is known for {target.name}; if you have one, give it as --draft-model."
        )
    return resolve(pair.drafter, "drafter", progress)


def _paired(target: Resolved, drafter: Resolved) -> PairFolders:
    known = pair_of_drafter(drafter.name)
    return PairFolders(
        target.name,
        target.folder,
        drafter.name,
        drafter.folder,
        thinking=known.thinking if known else None,
    )
