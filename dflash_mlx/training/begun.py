"""What the conversations of a folder were begun with, so that none of another kind joins them.

begun.json lies beside them. How many there are, and from which prompts, may change later; who
writes them and how may not, since a manifest speaks for all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..model_folder import read_json
from ..whole_file import write_whole
from .settings import PrepareSettings

BEGUN = "begun.json"
_KEPT = ("system", "turns", "length", "long_length")


def note_begun(folder: Path, facts: dict[str, Any]) -> None:
    """Note who writes and how, ahead of the first conversation."""
    write_whole(folder / BEGUN, json.dumps(facts, indent=2) + "\n")


def refuse_change(folder: Path, facts: dict[str, Any]) -> None:
    """Raise UsageError where the folder's conversations were written otherwise.

    A folder without the note is an older one, of which nothing is known.
    """
    if not (folder / BEGUN).exists():
        return
    noted = read_json(folder / BEGUN, "choose another --folder")
    changed = [name for name in facts if noted.get(name) != facts[name]]
    if changed:
        before, now = (
            ", ".join(f"{name} {json.dumps(side.get(name))}" for name in changed)
            for side in (noted, facts)
        )
        raise UsageError(
            f"The conversations in {folder} were written with {before}, not with {now}: ask for"
            " the same again, or choose another --folder."
        )


def begun_with(settings: PrepareSettings, **effective: Any) -> dict[str, Any]:
    """The facts to note: some of the settings, and what the target makes of others."""
    return {**effective, **{name: getattr(settings, name) for name in _KEPT}}
