"""Data on disk: conversations as they are written, and in the end the two sides of a corpus.

written.jsonl     every conversation that is done, one a line; an interrupted stage goes on here
train.jsonl       what to train on
heldout.jsonl     what to evaluate on, by conversation
manifest.json     who wrote them, and how
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..pair import Pair
from .blocks import valid_anchors
from .conversations import Conversation, conversation, split, without_repeats
from .corpus import HELDOUT, MANIFEST, TRAIN
from .prompts import make_plans
from .responses import Writer, Written
from .settings import PrepareSettings, to_json

WRITTEN = "written.jsonl"
_TEMPERATURE = 0.7
"""Of sampled answers, where neither a person nor the model says."""


@dataclass(frozen=True)
class PrepareReport:
    """How far the stage is: conversations done and in all, and tokens of answers."""

    done: int
    total: int
    answer_tokens: int
    looped: int

    def adding(self, record: dict[str, Any]) -> PrepareReport:
        """With one conversation more."""
        said = self.answer_tokens + record["assistant"].count("1")
        return PrepareReport(self.done + 1, self.total, said, self.looped + record["looped"])


class Prepare:
    """The stage in its folder. `identity` is the target's fingerprint."""

    def __init__(self, pair: Pair, settings: PrepareSettings, folder: Path, identity: str):
        self._pair = pair
        self._settings = settings
        self._folder = folder
        self._identity = identity
        self._path = folder / WRITTEN

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[PrepareReport]:
        """Have what is still missing, reporting after each conversation; then write the sides.

        With `stop`, what is written stays, and another run goes on.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        records = self._mended()
        plans = make_plans(self._settings, self._pair.defaults.temperature or _TEMPERATURE)
        keys = {record["key"] for record in records}
        missing = [plan for plan in plans if plan.prompt.key not in keys]
        total = len(records) + len(missing)
        writer = Writer(self._pair, self._settings)
        with self._path.open("a", encoding="utf-8") as file:
            report = PrepareReport(0, total, 0, 0)
            for record in records:
                report = report.adding(record)
            yield report
            for written in writer.write(missing, attempt=len(records)):
                records.append(_record(written))
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
                report = report.adding(records[-1])
                yield report
                if stop():
                    return
        self._write_sides(records)

    def _mended(self) -> list[dict[str, Any]]:
        """What is written so far; the half line of a killed process is cut off."""
        if not self._path.exists():
            return []
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        return [json.loads(line) for line in whole.splitlines()]

    def _write_sides(self, records: list[dict[str, Any]]) -> None:
        """Drop repeats and what gives no anchor, hold some out, and say whose work it is."""
        order = np.random.default_rng(self._settings.seed).permutation(len(records))
        talks = without_repeats(_talk(records[i]) for i in order)
        useful = [talk for talk in talks if len(valid_anchors(talk.assistant))]
        train, heldout = split(useful, self._settings.heldout)
        for name, side in ((TRAIN, train), (HELDOUT, heldout)):
            _replace(self._folder / name, "".join(talk.to_json() + "\n" for talk in side))
        manifest = {
            "target": self._pair.configuration.model,
            "target_fingerprint": self._identity,
            "target_dtype": self._pair.configuration.target_dtype,
            "blas": self._pair.configuration.blas,
            "settings": to_json(self._settings),
            "conversations": len(useful),
            "heldout_conversations": len(heldout),
            "answer_tokens": int(sum(talk.assistant.sum() for talk in useful)),
            "tokens": sum(len(talk) for talk in useful),
            "looped": sum(record["looped"] for record in records),
        }
        _replace(self._folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _record(written: Written) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(written.talk.to_json())
    return {"key": written.plan.prompt.key, "looped": written.looped, **record}


def _talk(record: dict[str, Any]) -> Conversation:
    flags = [flag == "1" for flag in record["assistant"]]
    return conversation(record["ids"], flags, record["temperature"])


def _replace(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_text(content, encoding="utf-8")
    new.replace(path)
