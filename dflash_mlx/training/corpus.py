"""The conversations of a run: read, cleaned, split, and matched with the target that wrote them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DFlashError
from .blocks import valid_anchors
from .conversations import Conversation, cut, read_conversations, split, without_loops

_SAMPLE, _SAMPLES = 1 << 16, 256
"""Bytes of a weights file that are read at a place to know it by, and about how many places."""

TRAIN, HELDOUT, MANIFEST = "train.jsonl", "heldout.jsonl", "manifest.json"


@dataclass(frozen=True)
class Corpus:
    """What to train on and what to evaluate on; `notes` are lines for a person to read.

    `thinking` is how the template's switch for reasoning was set, if all of the data says the same.
    """

    train: list[Conversation]
    heldout: list[Conversation]
    notes: tuple[str, ...] = ()
    thinking: bool | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation to train on."""
        return max(len(item) for item in self.train)

    def describe(self) -> dict[str, int]:
        """Counts, for a person and for the model card."""
        return {
            "conversations": len(self.train),
            "tokens": sum(len(item) for item in self.train),
            "answer_tokens": sum(int(item.assistant.sum()) for item in self.train),
            "heldout_conversations": len(self.heldout),
        }


def read_corpus(
    paths: Sequence[Path],
    vocabulary: int,
    identity: str,
    *,
    heldout: float,
    max_length: int,
    keep_loops: bool,
) -> Corpus:
    """The conversations of `paths`, each a folder of `prepare` or a JSONL file.

    `identity` names the target: data of another one is a note, as is data that does not say whose
    it is. `heldout` is the share to hold out of files (a folder has its own split). Raises
    DFlashError where nothing is left to train on.
    """
    train: list[Conversation] = []
    kept: list[Conversation] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            train += read_conversations(path / TRAIN, vocabulary)
            kept += read_conversations(path / HELDOUT, vocabulary)
            notes += _notes(path, identity)
        else:
            parts = split(read_conversations(path, vocabulary), heldout)
            train += parts[0]
            kept += parts[1]
            notes.append(f"{path.name} does not say which target wrote it: it should be this one.")
    asked = {item.prompt for item in kept}
    cleaned = [[_clean(item, max_length, keep_loops) for item in side] for side in (train, kept)]
    useful = [[item for item in side if len(valid_anchors(item.assistant))] for side in cleaned]
    train = [item for item in useful[0] if item.prompt not in asked]
    if not train:
        raise DFlashError(
            "There is nothing to train on: no conversation has two tokens of the assistant in a row"
            " that are not held out."
        )
    return Corpus(train, useful[1], tuple(notes), _thinking(paths))


def fingerprint(folder: Path) -> str:
    """A short name for a model's folder: its config, its template and its weights.

    Of each weights file the size, its end and many places between are read, which tells
    quantizations and fine-tunes apart without reading it all.
    """
    state = hashlib.sha256()
    for name in ("config.json", "tokenizer_config.json", "chat_template.jinja"):
        path = folder / name
        state.update(path.read_bytes() if path.exists() else b"")
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        state.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            last = max(size - _SAMPLE, 0)
            for start in (*range(0, last, max(size // _SAMPLES, _SAMPLE)), last):
                file.seek(start)
                state.update(file.read(_SAMPLE))
    return state.hexdigest()[:16]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `prepare` noted of its data; empty where there is no note."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DFlashError(f"{folder / MANIFEST} is damaged: prepare the data again.") from error
    return content if isinstance(content, dict) else {}


def _notes(folder: Path, identity: str) -> list[str]:
    wrote = read_manifest(folder).get("target_fingerprint")
    if wrote == identity:
        return []
    if wrote is None:
        return [f"{folder} does not say which target wrote it: it should be this one."]
    return [
        f"the answers in {folder} were written by another target (or its template changed):"
        " a drafter trained on them will be accepted less often; prepare the data anew."
    ]


def _thinking(paths: Sequence[Path]) -> bool | None:
    said = [read_manifest(path) if path.is_dir() else {} for path in paths]
    modes = {manifest.get("settings", {}).get("thinking") for manifest in said}
    return modes.pop() if len(modes) == 1 else None


def _clean(item: Conversation, max_length: int, keep_loops: bool) -> Conversation:
    short = cut(item, max_length)
    return short if keep_loops else without_loops(short)
