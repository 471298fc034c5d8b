"""The models on this machine: in the hub's cache, and what this program made in its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import DFlashError
from ..model_folder import read_json, weight_files
from .embedded import NAME, drafter_folder
from .registry import known_pair, pair_of_drafter
from .resolve import Role, describes_drafter, is_whole
from .store import cache_root, claimed, writing

Origin = Literal["hub", "made here", "shipped"]
_TALKS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


@dataclass(frozen=True)
class Held:
    """A model on this machine.

    `place` is what would be removed, and `folder` where the model is loaded from: in the hub's
    cache a snapshot inside `place`. `nbytes` counts its files wherever links lead to. `used` is
    when its weights were last read, in seconds since 1970, as far as the file system notes it
    (few note every time); None for a model that is not whole.
    """

    name: str
    role: Role
    origin: Origin
    folder: Path
    place: Path
    nbytes: int
    whole: bool
    used: float | None


def held_models(made: Path | None = None, hub: Path | None = None) -> list[Held]:
    """All models on this machine, by name: shipped, below `made`, and in the `hub`'s cache.

    The defaults are the user's own. Models that are neither a drafter nor able to talk are left
    out: the hub's cache is shared with other programs.
    """
    found = [*_shipped(), *_made(made or cache_root()), *_cached(hub or hub_cache())]
    return sorted(found, key=lambda model: model.name.lower())


def hub_cache() -> Path:
    """Where the hub's client keeps its downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def find(name: str, models: list[Held]) -> Held:
    """The model of that name. Raises DFlashError if there is none."""
    for model in models:
        if model.name == name:
            return model
    raise DFlashError(
        f"{name} is not on this machine: `dflash-mlx models` lists what is, by its full name."
    )


def drafter_name(target: Held) -> str | None:
    """The name of the drafter that is known for a target, on this machine or not."""
    if target.origin == "made here" and target.name == NAME:
        return drafter_folder().name
    pair = known_pair(target.name)
    return pair.drafter if pair else None


def remove(model: Held) -> int:
    """Delete a model and return the bytes that this freed; what links in it point to stays.

    Raises DFlashError for what ships with the program, a place that is a link, or one that may
    not be removed.
    """
    if model.origin == "shipped":
        raise DFlashError(f"{model.name} is part of dflash-mlx: it goes with the program.")
    if model.place.is_symlink():
        raise DFlashError(f"{model.place} is a link to {model.place.resolve()}: remove it by hand.")
    shared = model.place.parent / "blobs"  # the hub's client may keep files for many models there
    before = _bytes_of(model.place) + _bytes_of(shared)
    with writing(model.place):
        if model.origin == "hub":
            _remove_cached(model.place)
        else:
            with claimed(model.place) as workshop:
                model.place.rename(workshop / model.place.name)
    if model.place.exists():
        raise DFlashError(f"{model.place} cannot be removed whole: check who may write there.")
    return before - _bytes_of(shared)


def _shipped() -> Iterator[Held]:
    folder = drafter_folder()
    yield _held(folder.name, "drafter", "shipped", folder, folder)


def _made(root: Path) -> Iterator[Held]:
    """Conversions and the embedded target: each folder of `root` that holds a model."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if not folder.name.startswith(".") and (folder / "config.json").is_file():
            role = _role(folder)
            if role:
                yield _held(folder.name, role, "made here", folder, folder)


def _cached(cache: Path) -> Iterator[Held]:
    """The repositories of the hub's cache, at the revision that would be loaded."""
    for place in sorted(cache.glob("models--*--*")):
        name = place.name.removeprefix("models--").replace("--", "/", 1)
        reference = place / "refs" / "main"
        if not reference.is_file():
            continue
        folder = place / "snapshots" / reference.read_text(encoding="utf-8").strip()
        role = _role(folder) or _role_by_name(name)
        if role:
            yield _held(name, role, "hub", folder, place)


def _held(name: str, role: Role, origin: Origin, folder: Path, place: Path) -> Held:
    whole = is_whole(folder)
    used = max(file.stat().st_atime for file in weight_files(folder)) if whole else None
    nbytes = sum(file.stat().st_size for file in {file.resolve() for file in _files(place)})
    return Held(name, role, origin, folder, place, nbytes, whole, used)


def _role(folder: Path) -> Role | None:
    """What the model in `folder` is by its config; None if it is neither, or cannot be read."""
    try:
        config = read_json(folder / "config.json")
    except DFlashError:
        return None
    if describes_drafter(config):
        return "drafter"
    names = config.get("architectures")
    talks = isinstance(names, list) and any(str(name).endswith(_TALKS) for name in names)
    return "target" if talks else None


def _role_by_name(name: str) -> Role | None:
    """The role of a known model of which too little has arrived to tell."""
    if pair_of_drafter(name):
        return "drafter"
    return "target" if known_pair(name) else None


def _bytes_of(folder: Path) -> int:
    """Bytes of the files that lie below `folder` themselves; links count for nothing."""
    return sum(file.stat().st_size for file in _files(folder) if not file.is_symlink())


def _files(folder: Path) -> Iterator[Path]:
    """All files below `folder`, without following links to folders or into nowhere."""
    for base, _, names in os.walk(folder):
        yield from (file for name in names if (file := Path(base) / name).is_file())


def _remove_cached(place: Path) -> None:
    """Delete a repository of the hub's cache, by the hub's client as far as it understands it.

    The client selects by commit, which copies of a repository share: it is shown this one only.
    """
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(place.parent)
    this = frozenset(repo for repo in cache.repos if repo.repo_path == place.resolve())
    commits = [revision.commit_hash for repo in this for revision in repo.revisions]
    if commits:
        replace(cache, repos=this).delete_revisions(*commits).execute()
    if place.exists():  # an unfinished download, which the client does not list
        shutil.rmtree(place)
