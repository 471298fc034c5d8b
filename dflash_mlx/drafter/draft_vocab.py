"""A draft vocabulary: the target's tokens that drafts may come from, beside a drafter's weights.

Drafts only guess, so a drafter need not rank the whole vocabulary: most answers are made of a
small part of it, and reading the target's LM head is a large part of drafting. The file
`draft_vocab.json` holds {"ids": [token ids of the target, ascending], "source": "their origin"}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DFlashError
from ..model_folder import read_json

FILE = "draft_vocab.json"


def read_draft_vocab(folder: Path) -> tuple[int, ...] | None:
    """The ids in `folder`; None if it has no such file. Raises DFlashError if they are no ids."""
    path = folder / FILE
    if not path.exists():
        return None
    ids: Any = read_json(path).get("ids")
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise DFlashError(f"{path} has no list of token ids as 'ids': remove it, or make it again.")
    return tuple(ids)


def write_draft_vocab(folder: Path, ids: Sequence[int], source: str) -> None:
    """Write `ids`, ascending, with a word on where they come from."""
    content = {"source": source, "ids": sorted(ids)}
    (folder / FILE).write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
