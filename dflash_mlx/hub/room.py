"""Is there room for a pair: what it takes, part by part, before anything large is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import DFlashError
from ..model_folder import read_json
from .download import cached_repository, preview
from .embedded import NAME
from .fit import CONTEXT, Machine, cache_shape, kv_bytes, loaded_bytes, prefill_bytes, this_machine
from .registry import known_pair
from .resolve import is_whole
from .store import in_words


@dataclass(frozen=True)
class Room:
    """Bytes of a pair's parts on `machine`, with `context` tokens; `fetched`: not all is here."""

    machine: Machine
    context: int
    target: int
    drafter: int
    caches: int
    prefill: int
    fetched: bool

    @property
    def total(self) -> int:
        """All that the pair takes."""
        return self.target + self.drafter + self.caches + self.prefill

    @property
    def fits(self) -> bool:
        """Whether models may take so much on this machine."""
        return self.total <= self.machine.usable

    @property
    def line(self) -> str:
        """The sum, for a person."""
        drafter = f" + drafter {in_words(self.drafter)}" if self.drafter else ""
        most = f"models may take {in_words(self.machine.usable)} here"
        verdict = most if self.fits else f"too much: {most}"
        return (
            f"memory: target {in_words(self.target)}{drafter} + {self.context:,} tokens of context"
            f" {in_words(self.caches)} + a chunk of prefill {in_words(self.prefill)} = about"
            f" {in_words(self.total)}; {verdict}"
        )


@dataclass(frozen=True)
class _Half:
    """A model's config, the bytes of its weights when loaded, and whether it is here."""

    config: Mapping[str, Any]
    weights: int
    here: bool


def room_for(
    model: str | Path | None,
    drafter: str | Path | None,
    context: int | None = None,
    kv_bits: int | None = None,
    machine: Machine | None = None,
) -> Room | None:
    """What a pair takes; None where that cannot be told, or it is the small embedded model.

    `drafter` "auto" is the one that is known for the model. Reads headers of what is here; of what
    is not, the hub's list of files and the config alone.
    """
    machine = machine or this_machine()
    if model is None or str(model) == NAME:
        return None
    if drafter == "auto":
        known = known_pair(str(model))
        drafter = known.drafter if known else None
    width = machine.float_bytes
    target = _half(model, width)
    if target is None or (shape := cache_shape(target.config)) is None:
        return None
    limit = _text(target.config).get("max_position_embeddings") or CONTEXT
    tokens = min(context or CONTEXT, limit)
    room = Room(
        machine,
        tokens,
        target.weights,
        0,
        tokens * kv_bytes(shape, width, kv_bits),
        prefill_bytes(target.config, tokens, machine),
        not target.here,
    )
    half = _half(drafter, width) if drafter is not None else None
    if half is None:
        return room
    own = cache_shape(half.config)
    return replace(
        room,
        drafter=half.weights,
        caches=room.caches + (tokens * own.token_bytes(width) if own else 0),
        fetched=room.fetched or not half.here,
    )


def check_room(room: Room, model: str | Path) -> None:
    """Raise DFlashError where a pair would have to be fetched that this machine cannot hold."""
    if room.fetched and not room.fits:
        raise DFlashError(
            f"{model} does not fit in this machine ({room.line}). Choose a smaller model"
            " or one in fewer bits, less --context, or --no-draft."
        )


def _half(name: str | Path, float_bytes: int) -> _Half | None:
    """One model by its folder or its name at the hub; None where it is not found."""
    try:
        place = Path(name).expanduser()
        folder = place if place.is_dir() else cached_repository(str(name))
        if folder is not None and is_whole(folder):
            config = read_json(folder / "config.json")
            return _Half(config, loaded_bytes(folder, float_bytes), True)
        if str(name).count("/") != 1 or place.suffix == ".gguf":
            return None
        config, nbytes = preview(str(name))
    except (DFlashError, ValueError):
        return None  # whoever resolves the name says what is wrong with it
    quantized = "quantization" in config or "quantization_config" in config
    return _Half(config, nbytes if quantized else nbytes * float_bytes // 2, False)


def _text(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, **(config.get("text_config") or {})}
