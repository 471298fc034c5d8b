"""From the name of a model to a local folder: the embedded pair, a folder, or the hub's cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import DFlashError
from . import embedded
from .embedded import SetupProgress

Role = Literal["target", "drafter"]
Kind = Literal["embedded", "local", "hub"]


@dataclass(frozen=True)
class Resolved:
    """A model that is on this machine: where, what to call it, and where it came from."""

    folder: Path
    name: str
    kind: Kind


def resolve(
    name: str | Path | None, role: Role = "target", progress: SetupProgress | None = None
) -> Resolved:
    """The folder of model `name`: None or "smollm2-135m", a local folder, or "org/name".

    What is on this machine is used without touching the network. Raises DFlashError if there is
    no such model, it is incomplete, or it is not what `role` asks for.
    """
    if name is None or str(name) == embedded.NAME:
        ours = role == "drafter"
        folder = embedded.drafter_folder() if ours else embedded.ensure_target(progress)
        return Resolved(folder, f"{embedded.NAME}-dflash" if ours else embedded.NAME, "embedded")
    place = Path(name).expanduser()
    if place.suffix.lower() == ".gguf":
        raise DFlashError(
            f"{name} is a GGUF file: make an MLX folder of it first, with `dflash-mlx convert`."
        )
    if place.is_dir():
        check_model(place, role)
        return Resolved(place, place.name, "local")
    raise DFlashError(f"There is no model {name}: give a folder or org/name.")


def check_model(folder: Path, role: Role) -> None:
    pass
