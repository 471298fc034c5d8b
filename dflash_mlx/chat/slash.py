"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .loop import Chat


@dataclass(frozen=True)
class Command:
    """A command, how it is called, and what it does in a few words for /help."""

    name: str
    arguments: str
    help: str
    run: Callable[[Chat, str], None]


def is_command(line: str) -> bool:
    """Whether a line is meant as a command; a path such as /etc/hosts is not."""
    word = line.split(maxsplit=1)[0] if line.startswith("/") else ""
    return len(word) > 1 and word[1:].isalpha()


def run_command(chat: Chat, line: str) -> None:
    """Run the command that a line calls. Raises UsageError where there is no such command."""
    name, _, argument = line.partition(" ")
    for command in COMMANDS:
        if command.name == name:
            return command.run(chat, argument.strip())
    close = difflib.get_close_matches(name, [command.name for command in COMMANDS], 1)
    hint = f"did you mean {close[0]}?" if close else "/help lists the commands."
    raise UsageError(f"There is no command {name}: {hint}")


def _help(chat: Chat, _argument: str) -> None:
    calls = [f"{command.name} {command.arguments}".rstrip() for command in COMMANDS]
    width = max(map(len, calls))
    lines = [
        f"{call:<{width}}  {command.help}" for call, command in zip(calls, COMMANDS, strict=True)
    ]
    keys = "Ctrl-C stops a reply and keeps its part; Ctrl-D leaves."
    chat.view.say("\n".join([*lines, keys]))


def _new(chat: Chat, _argument: str) -> None:
    chat.new()
    chat.view.say("A new conversation.")


def _exit(chat: Chat, _argument: str) -> None:
    chat.leaving = True


COMMANDS = (
    Command("/help", "", "list the commands", _help),
    Command("/new", "", "begin a new conversation", _new),
    Command("/exit", "", "leave", _exit),
)
