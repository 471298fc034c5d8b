"""Conversations as the trainer reads and writes them: token ids, and which the assistant wrote.

One JSON object a line, in a file that may be gzipped:

    {"ids": [1, 9690, ...], "assistant": "0011...", "temperature": 0.0}

`assistant` has a 1 for each token that the target wrote as the assistant, its end-of-turn token
included: these are supervised. `temperature` (default 0: greedy) is that of its answers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DFlashError
from .lines import numbered_lines
from .loops import loop_start

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Conversation:
    """Token ids [n] and, for each, whether the target wrote it as the assistant (supervised)."""

    ids: Ids
    assistant: Flags
    temperature: float = 0.0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answers(self) -> list[tuple[int, int]]:
        """The assistant's turns as spans `[begin, end)`."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.assistant.astype(np.int8), [0]])))
        return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]

    @property
    def prompt(self) -> bytes:
        """What identifies the question: the tokens before the first answer."""
        first = self.answers[0][0] if self.answers else len(self)
        return self.ids[:first].tobytes()

    def to_json(self) -> str:
        """One line of a file of conversations, without its line break."""
        flags = "".join("1" if flag else "0" for flag in self.assistant)
        record = {"ids": self.ids.tolist(), "assistant": flags, "temperature": self.temperature}
        return json.dumps(record)


def conversation(
    ids: Sequence[int], assistant: Iterable[bool], temperature: float = 0.0
) -> Conversation:
    """A conversation from plain Python values."""
    flags = np.fromiter(assistant, np.bool_)
    return Conversation(np.asarray(ids, np.int32), flags, float(temperature))


def read_conversations(path: Path, vocabulary: int | None = None) -> list[Conversation]:
    """All conversations of a JSONL file (`.gz` or not). Raises DFlashError naming the bad line.

    With `vocabulary`, ids must be below it.
    """
    conversations = []
    for number, line in numbered_lines(
        path, "the conversations to train on, or have `train prepare` write some"
    ):
        try:
            item = _conversation(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise DFlashError(
                f'{path}, line {number}: not a conversation; a line is {{"ids": [...], '
                '"assistant": "0011...", "temperature": 0.0}.'
            ) from None
        if len(item.ids) != len(item.assistant):
            raise DFlashError(
                f"{path}, line {number}: {len(item.ids)} ids, but {len(item.assistant)} marks of"
                " who wrote them."
            )
        if len(item) and (item.ids.min() < 0 or (vocabulary and item.ids.max() >= vocabulary)):
            raise DFlashError(
                f"{path}, line {number}: ids outside the target's vocabulary of {vocabulary}"
                " tokens: these conversations are another model's."
            )
        conversations.append(item)
    return conversations


def _conversation(record: dict[str, Any]) -> Conversation:
    """What a line says. Raises ValueError, or what Python does of other kinds of values."""
    ids, temperature = record["ids"], float(record.get("temperature", 0.0))
    if set(map(type, ids)) - {int}:  # NumPy would cut 1.7 down to 1
        raise ValueError("ids that are no whole numbers")
    if not math.isfinite(temperature) or temperature < 0:
        raise ValueError("no temperature")
    marks = record["assistant"]
    if not isinstance(marks, str) or set(marks) - {"0", "1"}:
        raise ValueError("marks that are not a string of 0 and 1")
    return conversation(ids, (mark == "1" for mark in marks), temperature)


def without_repeats(conversations: Iterable[Conversation]) -> list[Conversation]:
    """Drop conversations that ask the same first question again."""
    first: dict[bytes, Conversation] = {}
    for item in conversations:
        first.setdefault(item.prompt, item)
    return list(first.values())


def without_loops(item: Conversation) -> Conversation:
    """Take supervision from the repeating ends of answers; the tokens stay, as context."""
    flags = item.assistant.copy()
    for begin, end in item.answers:
        start = loop_start(item.ids[begin:end].tolist())
        if start is not None:
            flags[begin + start : end] = False
    return replace(item, assistant=flags)


def loops(item: Conversation) -> bool:
    """Whether an answer goes round in circles."""
    return any(loop_start(item.ids[a:b].tolist()) is not None for a, b in item.answers)


def cut(item: Conversation, length: int) -> Conversation:
    """The first `length` tokens."""
    return replace(item, ids=item.ids[:length], assistant=item.assistant[:length])


def split(
    conversations: Iterable[Conversation], heldout: float
) -> tuple[list[Conversation], list[Conversation]]:
    """(train, held-out), a share of `heldout` for the latter, by a hash of the first question.

    The same question lands on the same side in every run and every file.
    """
    sides: tuple[list[Conversation], list[Conversation]] = ([], [])
    for item in conversations:
        digest = hashlib.sha256(item.prompt).digest()
        sides[int.from_bytes(digest[:4], "big") < heldout * 2**32].append(item)
    return sides


def digest(conversations: Iterable[Conversation]) -> str:
    """A short name for exactly these conversations, in this order."""
    state = hashlib.sha256()
    for item in conversations:
        state.update(item.ids.tobytes())
        state.update(item.assistant.tobytes())
    return state.hexdigest()[:16]
