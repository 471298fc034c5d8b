"""Where a chat's messages come from: a person at a terminal, or lines of a pipe."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from ..errors import UsageError

Complete = Callable[[str], list[str]]
"""From a command that is being typed to what its last word may become."""


class Reader(ABC):
    """A source of messages.

    `at_terminal` tells whether a person sits there, `whole_lines` whether lines are read rather
    than single keys, `keys` what to press. `complete` may be used to complete commands.
    """

    at_terminal: ClassVar[bool]
    whole_lines: ClassVar[bool] = True
    keys: ClassVar[str]
    complete: Complete = staticmethod(lambda text: [])

    @abstractmethod
    def read(self) -> str:
        """The next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""


class PipeReader(Reader):
    """Each line of standard input is a message."""

    at_terminal = False
    keys = "Each line of standard input is a message."

    def read(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


class PlainReader(Reader):
    """Lines that a person types, with no more than the terminal's own editing."""

    at_terminal = True
    keys = "Ctrl-C stops a reply and keeps its part. Ctrl-D leaves."

    def read(self) -> str:
        try:
            print("> ", end="", file=sys.stderr, flush=True)
            return input()
        except UnicodeDecodeError as error:
            raise UsageError("That was no valid UTF-8: check the terminal's encoding.") from error
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            raise
