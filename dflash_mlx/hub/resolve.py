"""From the name of a model to a local folder: the embedded pair, a folder, or the hub's cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import DFlashError
from ..model_folder import read_header, read_json, weight_files
from .download import cached_repository, fetch_repository
from .embedded import NAME, SetupProgress, drafter_folder, ensure_target

Role = Literal["target", "drafter", "any"]
Kind = Literal["embedded", "local", "hub"]

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_DRAFTER_KEYS = ("dflash_config", "target_layer_ids", "speculators_model_type")


@dataclass(frozen=True)
class Resolved:
    """A model that is on this machine: where, what to call it, and where it came from."""

    folder: Path
    name: str
    kind: Kind


def resolve(
    name: str | Path | None,
    role: Role = "target",
    progress: SetupProgress | None = None,
    *,
    root: Path | None = None,
) -> Resolved:
    """The folder of model `name`: None or "smollm2-135m", a local folder, or "org/name".

    What is on this machine is used without touching the network. Raises DFlashError if there is
    no such model, it is incomplete, or it is not what `role` asks for ("any": either). `root` is
    where the embedded model is kept, by default ~/.cache/dflash-mlx.
    """
    progress = progress or (lambda stage, done, total: None)
    if name is None or str(name) == NAME:
        folder = drafter_folder() if role == "drafter" else ensure_target(progress, root=root)
        return Resolved(folder, folder.name if role == "drafter" else NAME, "embedded")
    place = Path(name).expanduser()
    if place.suffix.lower() == ".gguf":
        raise DFlashError(
            f"{name} is a GGUF file: make an MLX folder of it first, with `dflash-mlx convert`."
        )
    if place.is_dir():
        check_model(place, role)
        return Resolved(place, place.resolve().name, "local")
    if place.exists():
        raise DFlashError(f"{name} is a file: give the folder that holds config.json.")
    if not _REPOSITORY.fullmatch(str(name)):
        raise DFlashError(
            f"There is no model folder {name}: give a folder that exists, or a model of the hub as"
            " org/name."
        )
    return Resolved(_repository(str(name), role, progress), str(name), "hub")


def _repository(name: str, role: Role, progress: SetupProgress) -> Path:
    """The snapshot of a hub model: as cached if that is whole, else what is missing is fetched."""
    folder = cached_repository(name)
    if folder is None or not is_whole(folder):
        folder = fetch_repository(name, progress)
    check_model(folder, role)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether config and weights of a snapshot are all there (a download may have stopped)."""
    try:
        read_json(folder / "config.json")
        weight_files(folder)
    except DFlashError:
        return False
    return True


def check_model(folder: Path, role: Role) -> None:
    """Raise DFlashError unless `folder` holds the whole weights and config of a `role`."""
    config = read_json(folder / "config.json")
    is_drafter = describes_drafter(config)
    if role == "target" and is_drafter:
        raise DFlashError(
            f"{folder} holds a DFlash drafter, not a model that can talk: give it as"
            " --draft-model, and its target as --model."
        )
    if role == "drafter" and not is_drafter:
        kind = config.get("model_type", "of an unknown kind")
        raise DFlashError(
            f"{folder} holds a language model ({kind}), not a DFlash drafter: give it as --model,"
            " and its drafter as --draft-model."
        )
    for file in weight_files(folder):
        read_header(file)


def describes_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a config is a drafter's, in any packaging (`drafter/packaging.py` tells which)."""
    names = config.get("architectures") or []
    named = any("DFlash" in str(name) or "DSpark" in str(name) for name in names)
    return named or any(key in config for key in _DRAFTER_KEYS)
