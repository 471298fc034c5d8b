"""How /help looks on screens of several widths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dflash_mlx.chat.prompt import PromptReader
from dflash_mlx.chat.slash import COMMANDS, run_command


def help_at(width: int | None) -> list[str]:
    said: list[str] = []
    view = SimpleNamespace(width=width, say=said.append)
    chat: Any = SimpleNamespace(view=view, reader=PromptReader)
    run_command(chat, "/help")
    return said[0].split("\n")


def test_no_line_is_wider_than_80_columns() -> None:
    lines = help_at(79)
    assert max(map(len, lines)) <= 79
    assert "/exit                    leave" in lines


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_screen_what_a_command_does_stands_below_it(width: int) -> None:
    lines = help_at(width)
    for command in COMMANDS:
        assert lines[lines.index(f"{command.name} {command.arguments}".rstrip()) + 1] == (
            f"  {command.help}"
        )


def test_where_lines_may_be_long_a_command_is_one_line() -> None:
    assert sum(line.startswith("/") for line in help_at(None)) == len(COMMANDS)
