"""Where conversations begin: prompts from files, built-in questions, or the target itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from .lines import numbered_lines
from .settings import PrepareSettings
from .topics import questions

_OWN = 1000
"""Conversations that the target begins itself, where nothing else is asked for."""


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn; the target continues as the user if `goes_on`.

    `key` names the prompt in files: the same words, or the same number of the target's own.
    """

    key: str
    turns: tuple[str, ...]
    system: str | None = None
    goes_on: bool = False


@dataclass(frozen=True)
class Plan:
    """A conversation to have: how it begins, how far it may go, and how it is answered."""

    prompt: Prompt
    length: int
    temperature: float


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file, one a line: `{"messages": [...]}`, or `{"text": "..."}`.

    It may be gzipped (`.gz`). Of messages, the user's are asked and the assistant's left out: the
    target gives its own. `prompt` is read like `text`. Raises UsageError naming the
    bad line, or where there is no prompt.
    """
    prompts = []
    for number, line in numbered_lines(path, "a JSONL file of prompts"):
        try:
            prompts.append(_prompt(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f'{path}, line {number}: a prompt is {{"text": "..."}} or {{"messages": '
                '[{"role": "user", "content": "..."}]}.'
            ) from None
    if not prompts:
        raise UsageError(f'{path} has no prompts: write {{"text": "..."}} a line.')
    return prompts


def make_plans(settings: PrepareSettings, temperature: float) -> list[Plan]:
    """All conversations that the settings ask for, without repeats, long ones last.

    `temperature` is that of sampled answers, where the settings do not say.

    Which are long and which are sampled hangs on each prompt alone, so more conversations can be
    asked for later without changing those that are done.
    """
    prompts: list[Prompt] = []
    for path in settings.prompts or ():
        prompts += read_prompts(path)
    for question in questions(settings.topics or 0, settings.seed):
        prompts.append(Prompt(_key(None, [question]), (question,), goes_on=True))
    nothing_else = settings.prompts is None and settings.topics is None
    own = settings.own if settings.own is not None else _OWN * nothing_else
    prompts += [Prompt(f"own-{number}", (), goes_on=True) for number in range(own)]
    if settings.system:
        prompts = [Prompt(p.key, p.turns, p.system or settings.system, p.goes_on) for p in prompts]
    if settings.temperature is not None:
        temperature = settings.temperature
    different = {prompt.key: prompt for prompt in prompts}
    plans = [_plan(prompt, settings, temperature) for prompt in different.values()]
    return sorted(plans, key=lambda plan: plan.length)


def _plan(prompt: Prompt, settings: PrepareSettings, temperature: float) -> Plan:
    seed = int.from_bytes(hashlib.sha256(prompt.key.encode()).digest()[:8], "big")
    long, sampled = np.random.default_rng([settings.seed, seed]).random(2)
    return Plan(
        prompt,
        settings.long_length if long < settings.long_share else settings.length,
        temperature if sampled < settings.sampled else 0.0,
    )


def _prompt(record: dict[str, Any]) -> Prompt:
    if "messages" not in record:
        text = record["text"] if "text" in record else record["prompt"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError("no text")
        return Prompt(_key(None, [text]), (text,))
    messages = record["messages"]
    system = [m["content"] for m in messages if m["role"] == "system"]
    turns = [m["content"] for m in messages if m["role"] == "user"]
    if not turns or not all(isinstance(text, str) and text for text in [*turns, *system]):
        raise ValueError("no user's message")
    return Prompt(_key(system[0] if system else None, turns), tuple(turns), *system[:1])


def _key(system: str | None, turns: Iterable[str]) -> str:
    content = json.dumps([system, *turns]).encode()
    return hashlib.sha256(content).hexdigest()[:16]
