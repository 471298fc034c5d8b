"""What a person sees of a chat. This view only ever adds text: pipes, logs, screen readers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from ..engine.events import Event

_KEPT = {ord("\t"): ord("\t"), ord("\n"): ord("\n"), ord("\r"): None}
_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_OTHERS = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_HARMLESS = _PICTURES | _OTHERS | _KEPT


def harmless(text: str) -> str:
    """A model's text for a terminal, which control characters in it would otherwise drive."""
    return text.translate(_HARMLESS)


def columns(stream: TextIO) -> int | None:
    """How wide the terminal is that `stream` leads to; None if it leads to no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # a stream without a descriptor says so with a ValueError
        return None


class View(Protocol):
    """Where a chat shows itself. `show_thinking`: reasoning is shown, and not only counted."""

    show_thinking: bool

    @property
    def width(self) -> int | None:
        """How many characters fit on a line; None where lines may be as long as they like."""

    def reply(self) -> AbstractContextManager[None]:
        """A reply comes within this block."""

    def progress(self, done: int, total: int) -> None:
        """So many tokens of the prompt have been read."""

    def show(self, event: Event) -> None:
        """What one round of a reply said."""

    def say(self, text: str) -> None:
        """A line or more from the program itself."""

    def aside(self, text: str) -> None:
        """The same, but less important."""

    def complain(self, text: str) -> None:
        """What went wrong."""


class PlainView:
    """Answers on standard output as they come, and all else on standard error."""

    def __init__(self, show_thinking: bool = False) -> None:
        self.show_thinking = show_thinking
        self._clean = harmless if sys.stdout.isatty() else str
        self._thoughts: int | None = None  # tokens of the reasoning that is going on

    @property
    def width(self) -> int | None:
        return columns(sys.stderr)

    @contextmanager
    def reply(self) -> Iterator[None]:
        self._begun = False
        try:
            yield
        except BaseException:
            self._end_thinking()
            if self._begun:
                print(flush=True)
            raise
        self._end_thinking()
        print(flush=True)

    def progress(self, done: int, total: int) -> None:
        pass

    def show(self, event: Event) -> None:
        if event.thinking:
            if self._thoughts is None:
                self._thoughts = 0
                self._whisper("thinking ...\n" if self.show_thinking else "thinking ...")
            if self.show_thinking:
                self._whisper(harmless(event.thinking))
        if self._thoughts is not None and (event.thinking or not event.text):
            self._thoughts += len(event.tokens)
        if event.text:
            self._end_thinking()
            print(self._clean(event.text), end="", flush=True)
            self._begun = True

    def _end_thinking(self) -> None:
        if self._thoughts is not None:
            self._whisper("\n\n" if self.show_thinking else f" {self._thoughts} tokens\n")
        self._thoughts = None

    def _whisper(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        print(harmless(text), file=sys.stderr, flush=True)

    def aside(self, text: str) -> None:
        self.say(text)

    def complain(self, text: str) -> None:
        self.say(f"error: {text}")
