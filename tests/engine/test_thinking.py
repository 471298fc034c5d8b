"""Reasoning told from answer (reports 65 and 67)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.engine.thinking import (
    ThinkingSplitter,
    opened_by_prompt,
    strip_thinking,
    thinking_tags,
    without_thinking,
)


def split(text: str, opened: bool, size: int = 1000) -> tuple[str, str]:
    """All reasoning and all answer of a reply that comes in pieces of `size` characters."""
    splitter = ThinkingSplitter(opened)
    outputs = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    outputs.append(splitter.finish())
    return "".join(thinking for thinking, _ in outputs), "".join(answer for _, answer in outputs)


CASES = {
    "opening tag in the prompt": ("I see.\n</think>\n\nYes.", True, ("I see.\n", "Yes.")),
    "opening tag in the prompt and again in the reply": (
        "\n<think>\nI see.</think>Yes.",
        True,
        ("I see.", "Yes."),
    ),
    "no tags": (" Yes. 1 < 2", False, ("", " Yes. 1 < 2")),
    "both tags": ("<think>\nI see.\n</think>\n\nYes.", False, ("I see.\n", "Yes.")),
    "whitespace before the opening tag": ("\n<think>I see.</think>Yes.", False, ("I see.", "Yes.")),
    "never closed": ("<think>I see. </thin", False, ("I see. </thin", "")),
    "never closed, opened by the prompt": ("I see.", True, ("I see.", "")),
    "nothing thought": ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
    "closed at once, opened by the prompt": ("\n</think>\nYes.", True, ("", "Yes.")),
    "no answer": ("<think>I see.</think>\n", False, ("I see.", "")),
    "thinking again": ("<think>a</think>\n<think>b</think>\nc", False, ("ab", "c")),
    "tags in the answer": (
        "The tag <think> opens, </think> closes.",
        False,
        ("", "The tag <think> opens, </think> closes."),
    ),
    "an answer that begins like a tag": ("<thing>", False, ("", "<thing>")),
    "an answer that is half a tag": (" <thin", False, ("", " <thin")),
    "an answer that is half a tag, after reasoning": ("a</think> <th", True, ("a", "<th")),
    "only whitespace": (" \n", False, ("", " \n")),
    "nothing": ("", False, ("", "")),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 1000])
@pytest.mark.parametrize(("text", "opened", "expected"), CASES.values(), ids=CASES.keys())
def test_reasoning_and_answer(
    text: str, opened: bool, expected: tuple[str, str], size: int
) -> None:
    assert split(text, opened, size) == expected


parts = st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "é", "👩‍👧"])


def by_the_rules(text: str, opened: bool) -> tuple[str, str]:
    """The rules of the module, read off the whole text."""
    thinking, answer, rest = "", "", text
    after_tag = opened
    while True:
        head = re.match(r"\s*<think>\s*(?:\s*<think>\s*)*", rest)
        if head:
            rest = rest[head.end() :]
        elif after_tag:
            rest = rest.lstrip()
        if not (head or opened):
            return thinking, answer + rest
        inside, closed, rest = rest.partition("</think>")
        thinking += inside
        if not closed:
            return thinking, answer
        opened, after_tag = False, True


@given(st.lists(parts, max_size=16).map("".join), st.booleans(), st.integers(1, 16))
def test_the_pieces_do_not_matter_and_nothing_else_is_lost(
    text: str, opened: bool, size: int
) -> None:
    assert split(text, opened, size) == by_the_rules(text, opened)


def test_reasoning_is_shown_while_it_grows() -> None:
    splitter = ThinkingSplitter(opened=True)
    assert splitter.push("I think 1 <") == ("I think 1 ", "")
    assert splitter.push("2") == ("<2", "")
    assert splitter.push("</think>\n") == ("", "")
    assert splitter.push("\nY") == ("", "Y")
    assert splitter.push("es </think>") == ("", "es </think>")


def test_other_tags_can_be_named() -> None:
    splitter = ThinkingSplitter(False, "<|channel>thought", "<channel|>")
    assert splitter.push("<|channel>thought\nI see.<channel|>Yes.") == ("I see.", "Yes.")


class Wrapper:
    """What mlx-lm's wrapper says of a vocabulary's tags."""

    def __init__(self, think_start: str | None, think_end: str | None) -> None:
        self.think_start = think_start
        self.think_end = think_end


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (Wrapper("<longcat_think>", "</longcat_think>"), ("<longcat_think>", "</longcat_think>")),
        (Wrapper(None, None), ("<think>", "</think>")),
        (object(), ("<think>", "</think>")),
    ],
    ids=["a vocabulary with tags", "a vocabulary without", "no wrapper"],
)
def test_the_tags_are_the_vocabularys_own(tokenizer: object, expected: tuple[str, str]) -> None:
    assert thinking_tags(tokenizer) == expected


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|Assistant|><think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
    ids=["with a newline", "bare", "thinking switched off", "asked about by the user", "empty"],
)
def test_a_prompt_opens_the_reasoning_if_it_ends_with_the_tag(prompt: str, opened: bool) -> None:
    assert opened_by_prompt(prompt) is opened


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("<think>\na\n</think>\n\nYes.", "Yes."),
        ("a\n</think>\n\nYes.", "Yes."),
        ("Yes.", "Yes."),
        ("<think>cut off", ""),
        ("Write <think> before and </think> after.", "Write <think> before and </think> after."),
    ],
    ids=["both tags", "only the closing tag", "no tags", "never closed", "tags in prose"],
)
def test_a_history_keeps_the_answer(reply: str, kept: str) -> None:
    assert strip_thinking(reply) == kept


def test_a_history_keeps_every_message_and_its_tool_calls() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Rain? Answer after </think>."},
        {"role": "assistant", "content": "<think>Ask.</think>", "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "no"},
        {"role": "assistant", "content": "So no.</think>No."},
    ]
    assert without_thinking(messages) == [
        {"role": "user", "content": "Rain? Answer after </think>."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "no"},
        {"role": "assistant", "content": "No."},
    ]
    assert messages[1]["content"] == "<think>Ask.</think>", "the caller's messages are untouched"
