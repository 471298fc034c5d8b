"""Where a chat's messages come from: a person at a terminal, or lines of a pipe."""

from __future__ import annotations

import sys
from typing import Protocol


class Reader(Protocol):
    """A source of messages. `at_terminal` tells whether a person sits there."""

    at_terminal: bool

    def read(self) -> str:
        """The next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""


class PipeReader:
    """Each line of standard input is a message."""

    at_terminal = False

    def read(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


class PlainReader:
    """Lines that a person types, with no more than the terminal's own editing."""

    at_terminal = True

    def read(self) -> str:
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            return input()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            raise


def make_reader() -> Reader:
    """The reader that suits standard input."""
    return PlainReader() if sys.stdin.isatty() else PipeReader()
