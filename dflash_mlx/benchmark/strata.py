"""The kinds of prompts that are measured apart, since drafting gains differently on each.

Code is HumanEval (OpenAI, MIT: see NOTICE), all other prompts are this project's own. No drafter of
this project is trained on any of them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..engine.options import Sampling
from ..errors import UsageError

FOLDER = Path(__file__).parent / "prompts"
FILES = {
    "chat": "chat.jsonl",
    "code": "code.jsonl.gz",
    "maths": "maths.jsonl",
    "long-context": "long.jsonl",
    "non-english": "languages.jsonl",
    "json": "json.jsonl",
}
_CODE = "Complete this Python function. Answer with the whole function in one code block.\n\n{}"


@dataclass(frozen=True)
class Stratum:
    """Prompts of one kind under one sampling (None: a server's own), by the name of both."""

    name: str
    prompts: list[str]
    sampling: Sampling | None


def chosen(names: str | None) -> list[str]:
    """The kinds in a list with commas; all without one. Raises UsageError for an unknown kind."""
    wanted = list(FILES) if names is None else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in FILES:
            raise UsageError(f"There are no prompts {name!r}: --strata takes {', '.join(FILES)}.")
    return list(dict.fromkeys(wanted))


def prompts(
    kind: str, limit: int | None = None, *, context: int = 0, count: Callable[[str], int] = len
) -> list[str]:
    """The first `limit` prompts of a kind (all of them if None).

    Those of "long-context" bring notes of about `context` tokens, as `count` counts tokens.
    """
    texts = _texts(FOLDER / FILES[kind])[:limit]
    if kind == "code":
        return [_CODE.format(text) for text in texts]
    if kind == "long-context":
        notes = (FOLDER / "notes.txt").read_text(encoding="utf-8").split("\n\n")
        sizes = [count(note) for note in notes]
        return [_with_notes(notes, sizes, n, context, text) for n, text in enumerate(texts)]
    return texts


def _texts(path: Path) -> list[str]:
    """The field `text` of every line of a JSONL file, compressed or not."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    return [json.loads(line)["text"] for line in lines]


def _with_notes(notes: list[str], sizes: list[int], first: int, context: int, text: str) -> str:
    """Notes from another one on for each prompt, so that no two begin alike, and the question."""
    taken, tokens = list[str](), 0
    while tokens < context:
        place = (2 * first + len(taken)) % len(notes)
        taken.append(notes[place].strip())
        tokens += sizes[place]
    return "\n\n".join(["Notes from the archive of Harrow Sound:", *taken, text])
