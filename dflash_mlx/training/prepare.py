"""Data on disk: conversations as they are written, and in the end the two sides of a corpus.

written.jsonl     every conversation that is done, one a line; an interrupted stage goes on here
train.jsonl       what to train on
heldout.jsonl     what to evaluate on, by conversation
begun.json        what they were begun with: see `begun`
manifest.json     who wrote them, and how
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DFlashError
from ..pair import Pair
from ..whole_file import write_whole
from .begun import begun_with, note_begun, refuse_change
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
    """How far the stage is: conversations done and in all, and tokens of answers so far.

    `left_out` prompts leave no room for an answer in their length; they are not asked.
    """

    done: int
    total: int
    answer_tokens: int
    looped: int
    left_out: int

    def adding(self, record: dict[str, Any]) -> PrepareReport:
        """With one conversation more."""
        return replace(
            self,
            done=self.done + 1,
            answer_tokens=self.answer_tokens + record["assistant"].count("1"),
            looped=self.looped + record["looped"],
        )


class Prepare:
    """The stage in its folder. `identity` is the target's fingerprint.

    `notes` are lines for a person to read.
    """

    def __init__(self, pair: Pair, settings: PrepareSettings, folder: Path, identity: str):
        self._pair = pair
        self._folder = folder
        self._identity = identity
        self._path = folder / WRITTEN
        self._settings, self.notes = _within(settings, pair.target.context_limit)
        default = pair.defaults.temperature or _TEMPERATURE
        self._temperature = default if settings.temperature is None else settings.temperature
        self._thinking = pair.thinking if settings.thinking is None else settings.thinking

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[PrepareReport]:
        """Have what is still missing, reporting after each pass; then write the sides.

        With `stop`, which is asked after each pass, what is written stays, and another run goes
        on. Raises UsageError where the folder's conversations were begun in another way.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        records = self._mended()
        self._check_begun(records)
        plans = make_plans(self._settings, self._temperature)
        keys = {record["key"] for record in records}
        missing = [plan for plan in plans if plan.prompt.key not in keys]
        writer = Writer(self._pair, self._settings)
        asked = [plan for plan in missing if writer.fits(plan)]
        left_out = len(missing) - len(asked)
        with self._path.open("a", encoding="utf-8") as file:
            report = PrepareReport(0, len(records) + len(asked), 0, 0, left_out)
            for record in records:
                report = report.adding(record)
            yield report
            for advance in writer.write(asked, attempt=len(records)):
                for written in advance.done:
                    records.append(_record(written))
                    file.write(json.dumps(records[-1]) + "\n")
                    report = report.adding(records[-1])
                file.flush()
                yield replace(report, answer_tokens=report.answer_tokens + advance.unfinished)
                if stop():
                    return
        self._write_sides(records, left_out)

    def _check_begun(self, records: list[dict[str, Any]]) -> None:
        """Note what the first conversation is begun with; later ones may not differ in it."""
        facts = begun_with(
            self._settings,
            target=self._identity,
            dtype=self._pair.configuration.target_dtype,
            thinking=self._thinking,
            temperature=self._temperature,
        )
        if records:
            refuse_change(self._folder, facts)
        else:
            note_begun(self._folder, facts)

    def _mended(self) -> list[dict[str, Any]]:
        """What is written so far; the half line of a killed process is cut off."""
        if not self._path.exists():
            return []
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        records = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                records.append(json.loads(line))
            except ValueError:
                raise DFlashError(
                    f"{self._path}, line {number} is damaged: take it out, and its conversation is"
                    " had anew."
                ) from None
        return records

    def _write_sides(self, records: list[dict[str, Any]], left_out: int) -> None:
        """Drop repeats and what gives no anchor, hold some out, and say whose work it is."""
        order = np.random.default_rng(self._settings.seed).permutation(len(records))
        talks = without_repeats(_talk(records[i]) for i in order)
        useful = [talk for talk in talks if len(valid_anchors(talk.assistant))]
        train, heldout = split(useful, self._settings.heldout)
        for name, side in ((TRAIN, train), (HELDOUT, heldout)):
            write_whole(self._folder / name, "".join(talk.to_json() + "\n" for talk in side))
        manifest = {
            "target": self._pair.configuration.model,
            "target_fingerprint": self._identity,
            "target_dtype": self._pair.configuration.target_dtype,
            "blas": self._pair.configuration.blas,
            # The mode that ran: where nothing is asked for, the pair has its own.
            "settings": {**to_json(self._settings), "thinking": self._thinking},
            "conversations": len(useful),
            "heldout_conversations": len(heldout),
            "answer_tokens": int(sum(talk.assistant.sum() for talk in useful)),
            "tokens": sum(len(talk) for talk in useful),
            "looped": sum(record["looped"] for record in records),
            "left_out": left_out,
        }
        write_whole(self._folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _within(
    settings: PrepareSettings, limit: int | None
) -> tuple[PrepareSettings, tuple[str, ...]]:
    """Settings whose lengths the target's context can hold, and a note of each that was cut."""
    over = [name for name in ("length", "long_length") if limit and getattr(settings, name) > limit]
    notes = tuple(
        f"--{name.replace('_', '-')} {getattr(settings, name):,} is more than the target's context"
        f" holds: conversations end at {limit:,} tokens."
        for name in over
        if name == "length" or settings.long_share
    )
    within: dict[str, Any] = dict.fromkeys(over, limit)
    return replace(settings, **within), notes


def _record(written: Written) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(written.talk.to_json())
    return {"key": written.plan.prompt.key, "looped": written.looped, **record}


def _talk(record: dict[str, Any]) -> Conversation:
    flags = [flag == "1" for flag in record["assistant"]]
    return conversation(record["ids"], flags, record["temperature"])
