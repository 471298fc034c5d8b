"""The rows at the end of a terminal: what is finished stays, and only what is open is redrawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

_ERASE_LINE, _ERASE_BELOW = "\x1b[K", "\x1b[J"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # show what comes between at once, if it is known


@dataclass(frozen=True)
class _Row:
    """A line as it is written, and how many cells it takes."""

    codes: str
    cells: int


class Canvas:
    """Draws lines below what was printed before, and redraws as few of them as it can.

    The open lines are those of the last `draw`; the cursor stands behind the last of them. If the
    screen is not high enough, only the end of them is shown.
    """

    def __init__(
        self,
        console: Console,
        size: Callable[[], tuple[int, int]] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._console = console
        self._size = size or (lambda: os.get_terminal_size(console.file.fileno()))
        self._reflows = reflows(environment)
        self._open: list[_Row] = []
        self._columns = self._size()[0]

    @property
    def width(self) -> int:
        """How wide lines may be: the last column stays free, since terminals differ in its use."""
        return max(self._size()[0] - 1, 1)

    def draw(self, finished: Sequence[Text], still_open: Sequence[Text] = ()) -> None:
        """Put `finished` lines, which stay, and the new open lines in place of the old ones.

        Finished lines may be longer than the screen is wide: the terminal wraps them.
        """
        columns, rows = self._size()
        resized, self._columns = columns != self._columns, columns
        before = self._open
        self._open = self._rows(still_open[-max(rows - 1, 1) :])
        now = [*self._rows(finished), *self._open]
        same = 0 if resized else _common(before, now)
        if same == len(before) == len(now) and self._open:
            return
        if same == len(now) < len(before):
            same -= bool(now)  # the cursor belongs behind the last line
        steps = self._step_back(before, same, columns) if same < len(before) else ""
        if before and same == len(before) < len(now):
            steps = "\r\n"
        steps += "\r\n".join(_overwrite(row, columns) for row in now[same:])
        self._write(steps + ("\r\n" if now and not self._open else "") + _ERASE_BELOW)

    def _step_back(self, rows: Sequence[_Row], place: int, columns: int) -> str:
        """Move the cursor from behind the last of the drawn rows to the beginning of `place`."""
        up = len(rows) - 1 - place
        if self._reflows:  # in a window that has become narrower, a line may take several rows
            up = sum(max(-(-row.cells // columns), 1) for row in rows[place:]) - 1
        return f"\x1b[{up}A\r" if up else "\r"

    def _rows(self, lines: Sequence[Text]) -> list[_Row]:
        """Lines with the codes of their colours."""
        if not lines:
            return []
        with self._console.capture() as capture:
            self._console.print(Text("\n").join(lines), soft_wrap=True, highlight=False, end="")
        codes = capture.get().split("\n")
        return [_Row(code, line.cell_len) for code, line in zip(codes, lines, strict=True)]

    def _write(self, codes: str) -> None:
        self._console.file.write(f"{_BEGIN}{codes}{_END}")
        self._console.file.flush()


def _common(before: Sequence[_Row], now: Sequence[_Row]) -> int:
    """How many rows at the beginning are the same."""
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    return same


def _overwrite(row: _Row, columns: int) -> str:
    """Write a row over what may be there. (To erase behind a full row would take its last cell.)"""
    return row.codes + _ERASE_LINE if row.cells < columns else _ERASE_BELOW + row.codes


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether the terminal wraps anew what is on it when it becomes narrower; a few only crop."""
    terminal = environment.get("TERM", "")
    screen = terminal.startswith("screen") and "TMUX" not in environment
    return not (terminal == "linux" or screen or "XTERM_VERSION" in environment)
