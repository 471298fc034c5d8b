"""A reply in a real terminal: its size, also while it changes, and its colours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from .documents import EVERYTHING
from .terminal import ENTER, Terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7]")


@contextmanager
def playing(
    folder: Path, text: str, *flags: str, columns: int = 80, env: dict[str, str] | None = None
) -> Iterator[Terminal]:
    """A terminal where `text` is said."""
    (folder / "reply.md").write_text(text, encoding="utf-8")
    command: Sequence[str] = ["-m", "tests.chat.play", str(folder / "reply.md"), *flags]
    terminal = Terminal(command, home=folder, columns=columns, env=env)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("columns", [40, 200])
def test_the_terminals_width_is_taken(tmp_path: Path, columns: int) -> None:
    with playing(tmp_path, EVERYTHING, "7", columns=columns) as terminal:
        terminal.wait_for("the end")
        expected = (SNAPSHOTS / f"everything-{columns}.txt").read_text(encoding="utf-8")
        assert terminal.lines[:-1] == expected.rstrip("\n").split("\n")
        assert COLOUR.search(terminal.raw)


def test_a_window_may_change_while_the_reply_comes(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(40))
    with playing(tmp_path, f"before\n\n{words}", "20", "--wait", columns=60) as terminal:
        for step in range(5):
            terminal.wait_for_title(str(step))
            terminal.type(ENTER)
        terminal.wait_for_title("5")
        terminal.resize(100)
        terminal.type(ENTER * 30)
        terminal.wait_for("the end")
        assert terminal.lines[0] == "before"
        assert " ".join(terminal.lines[2:-1]).split() == words.split()
        assert max(map(len, terminal.lines)) > 60


def test_no_color_is_respected(tmp_path: Path) -> None:
    with playing(tmp_path, EVERYTHING, "50", env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for("the end")
        assert not COLOUR.search(terminal.raw)
