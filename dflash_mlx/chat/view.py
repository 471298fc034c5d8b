"""What a person sees of a chat. The plain view only ever adds text: pipes, logs, screen readers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ..engine.events import Event


class View(Protocol):
    """Where a chat shows itself."""

    def reply(self) -> AbstractContextManager[None]:
        """A reply comes within this block."""

    def progress(self, done: int, total: int) -> None:
        """So many tokens of the prompt have been read."""

    def show(self, event: Event) -> None:
        """What one round of a reply said."""

    def say(self, text: str) -> None:
        """A line or more from the program itself."""

    def complain(self, text: str) -> None:
        """What went wrong."""


class PlainView:
    """Answers on standard output as they come, and all else on standard error."""

    @contextmanager
    def reply(self) -> Iterator[None]:
        try:
            yield
        finally:
            print(flush=True)

    def progress(self, done: int, total: int) -> None:
        pass

    def show(self, event: Event) -> None:
        print(event.text, end="", flush=True)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def complain(self, text: str) -> None:
        self.say(f"error: {text}")
