"""Which folders make a pair: the names that a person gives, resolved for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DFlashError
from .embedded import SetupProgress, drafter_folder
from .registry import known_pair, pair_of_drafter
from .resolve import Resolved, resolve
from .room import Room, check_room, room_for

AUTO = "auto"


@dataclass(frozen=True)
class PairFolders:
    """Local folders of a pair and the names to show for them; no drafter means plain decoding.

    `note` is a line for a person who might have expected a drafter, `memory` one that sums up what
    the pair takes; `context` is the longest that was asked for. `thinking` is the mode that
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
    memory: str | None = None
    context: int | None = None


def resolve_pair(
    model: str | Path | None,
    draft_model: str | Path | None = AUTO,
    progress: SetupProgress | None = None,
    *,
    root: Path | None = None,
    context: int | None = None,
    kv_bits: int | None = None,
) -> PairFolders:
    """Find both halves, setting up or downloading what is not there.

    `draft_model` "auto" is the drafter that is known for the model; without one that can be had,
    the note says why the pair decodes plainly. None is none; a name that cannot be had is an
    error, never plain decoding. `root` is where the embedded model is kept. What does not fit in
    memory with `context` tokens is not fetched. Raises DFlashError.
    """
    draft_model, room, crowded = _with_room(model, draft_model, context, kv_bits)
    target = resolve(model, "target", progress, root=root)
    known = known_pair(target.name)  # plainly too, the prompt is the one that drafting would have
    memory = room.line if room else None
    plain = PairFolders(
        target.name,
        target.folder,
        thinking=known.thinking if known else None,
        note=crowded,
        memory=memory,
        context=context,
    )
    if draft_model is None:
        return plain
    if draft_model != AUTO:
        paired = _paired(target, resolve(draft_model, "drafter", progress))
        return replace(paired, chosen=True, memory=memory, context=context)
    try:
        paired = _paired(target, known_drafter(target, progress))
        return replace(paired, memory=memory, context=context)
    except DFlashError as reason:
        return replace(plain, note=f"decoding without a drafter: {reason}")


def _with_room(
    model: str | Path | None,
    draft_model: str | Path | None,
    context: int | None,
    kv_bits: int | None,
) -> tuple[str | Path | None, Room | None, str | None]:
    """The drafter that there is room for, what the pair takes, and a note where it is left out."""
    room = room_for(model, draft_model, context, kv_bits)
    if room is None or model is None:
        return draft_model, room, None
    if draft_model == AUTO and room.fetched and not room.fits:
        alone = room_for(model, None, context, kv_bits)
        if alone is not None and alone.fits:
            note = f"decoding without a drafter: no room for it ({room.line})"
            return None, alone, note
    check_room(room, model)
    return draft_model, room, None


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
