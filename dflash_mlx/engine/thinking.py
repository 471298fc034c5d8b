"""Reasoning told from answer, while both are still being written.

A reply reads `<think>` reasoning `</think>` answer, but a template may have put the opening tag
into the prompt, so that the reply has only the closing one; and a reply may have no reasoning, or
one that never closes. The rules:

* A reply begins as reasoning if the prompt left a tag open (`opened_by_prompt`), or if nothing
  but whitespace comes before an opening tag. What follows a closing tag is judged in the same way
  as the beginning of a reply. Tags in other places are text like any other.
* Tags are dropped, and so is the whitespace right after a tag, and before one that opens.
  Everything else comes out once and in order: up to the closing tag as reasoning, then as answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .stops import unfinished_match

OPEN_TAG = "<think>"
CLOSE_TAG = "</think>"


class ThinkingSplitter:
    """Text in, piece by piece; out come (reasoning, answer), each as soon as it is certain.

    `opened` says that the reply begins inside the reasoning. What may be the beginning of a tag,
    or whitespace that a tag may follow, is held back. However the text is cut into pieces, the
    outputs joined are the same.
    """

    def __init__(self, opened: bool, open_tag: str = OPEN_TAG, close_tag: str = CLOSE_TAG) -> None:
        self._open_tag = open_tag
        self._close_tag = close_tag
        self._inside = opened
        self._at_head = True  # an opening tag may come: at the beginning, and after each tag
        self._after_tag = opened  # the whitespace at this head goes with the tag before it
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the answer that this piece makes certain."""
        self._held += text
        thinking = answer = ""
        while not self._at_head or self._leave_head():
            if not self._inside:
                answer += self._held
                self._held = ""
                break
            before, close_tag, after = self._held.partition(self._close_tag)
            if not close_tag:
                certain = len(before) - unfinished_match(before, [self._close_tag])
                thinking += before[:certain]
                self._held = before[certain:]
                break
            thinking += before
            self._held = after
            self._inside, self._at_head, self._after_tag = False, True, True
        return thinking, answer

    def finish(self) -> tuple[str, str]:
        """Return what was held back: the text is over, so no tag will come of it."""
        held, self._held = self._held, ""
        return (held, "") if self._inside else ("", held)

    def _leave_head(self) -> bool:
        """Consume opening tags and their whitespace; False while more could still come."""
        while True:
            stripped = self._held.lstrip()
            if self._after_tag:
                self._held = stripped
            if not stripped.startswith(self._open_tag):
                break
            self._held = stripped.removeprefix(self._open_tag)
            self._inside = self._after_tag = True
        self._at_head = self._open_tag.startswith(stripped)
        return not self._at_head


def thinking_tags(tokenizer: Any) -> tuple[str, str]:
    """Return the opening and closing tag that mlx-lm's wrapper knows, else the usual ones."""
    open_tag = getattr(tokenizer, "think_start", None)
    close_tag = getattr(tokenizer, "think_end", None)
    return (open_tag, close_tag) if open_tag and close_tag else (OPEN_TAG, CLOSE_TAG)


def opened_by_prompt(prompt_text: str, open_tag: str = OPEN_TAG) -> bool:
    """Whether the prompt ends with an opening tag, so that the reply begins as reasoning.

    Only the end counts: a user may well ask about the tag.
    """
    return prompt_text.rstrip().endswith(open_tag)


def strip_thinking(text: str, open_tag: str = OPEN_TAG, close_tag: str = CLOSE_TAG) -> str:
    """Return the answer of a whole reply, as a history should keep it.

    Whether the prompt opened the reasoning is told from the text: it did if a closing tag comes
    with no opening tag before it.
    """
    before, closed, _ = text.partition(close_tag)
    splitter = ThinkingSplitter(bool(closed) and open_tag not in before, open_tag, close_tag)
    _, answer = splitter.push(text)
    _, held = splitter.finish()
    return answer + held


def without_thinking(
    messages: Iterable[Mapping[str, Any]], open_tag: str = OPEN_TAG, close_tag: str = CLOSE_TAG
) -> list[dict[str, Any]]:
    """Return a history whose assistant messages have lost their reasoning, and nothing else.

    No message is dropped, even if only reasoning was in it: one that carries tool calls would
    leave its results without a question, and most templates want the roles to alternate.
    """
    history = [dict(message) for message in messages]
    for message in history:
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            message["content"] = strip_thinking(message["content"], open_tag, close_tag)
    return history
