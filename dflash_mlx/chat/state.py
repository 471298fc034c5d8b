"""What a chat keeps between runs: files for their owner's eyes only, each whole or absent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DFlashError
from ..hub.store import home, writing
from ..whole_file import read_object, replacing


def state_folder() -> Path:
    """Where conversations, the history of messages and the last pair are kept."""
    return home() / ".local" / "share" / "dflash-mlx"


def private_file(path: Path) -> Path:
    """Make sure that `path` exists and that only its owner can read it. Raises DFlashError."""
    with writing(path):
        _make(path)
    return path


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.chmod(0o600)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file of mode 0600 in one step, in place of an older one. Raises DFlashError."""
    with writing(path), replacing(path) as new:
        _make(new)
        new.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class PairNames:
    """The pair that a chat talks with, by the names that load it again."""

    model: str
    draft_model: str = "auto"

    def remember(self, folder: Path) -> None:
        """Keep it in the state folder, local folders by their full paths. Raises DFlashError."""
        write_json(folder / "last-pair.json", {k: _absolute(v) for k, v in vars(self).items()})


def _absolute(name: str) -> str:
    place = Path(name).expanduser()
    return str(place.resolve()) if place.is_dir() else name


def last_pair(folder: Path) -> PairNames | None:
    """The pair of the last chat; None where there was none. Raises DFlashError if unreadable."""
    path = folder / "last-pair.json"
    if not os.path.lexists(path):
        return None
    value = read_object(path, "delete it")
    names = value.get("model"), value.get("draft_model")
    if not all(isinstance(name, str) for name in names):
        raise DFlashError(f"{path} names no pair.")
    return PairNames(str(names[0]), str(names[1]))
