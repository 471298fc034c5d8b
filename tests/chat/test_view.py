"""How wide lines of the program's own words may be."""

from __future__ import annotations

import io
import os
import pty
import termios
from pathlib import Path

import pytest

from dflash_mlx.chat.view import columns


@pytest.mark.parametrize(("width", "told"), [(57, 57), (0, None)])
def test_a_terminal_tells_its_width_unless_it_does_not_know_it(width: int, told: int) -> None:
    """A serial line has none, say."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        termios.tcsetwinsize(terminal, (24, width))
        assert columns(terminal) == told
    os.close(master)


def test_what_leads_to_no_terminal_has_no_width(tmp_path: Path) -> None:
    assert columns(io.StringIO()) is None
    with (tmp_path / "log").open("w") as log:
        assert columns(log) is None
