"""A screen within the test's own process: what is written to it, and what a person then sees."""

from __future__ import annotations

import io

import pyte
from rich.console import Console


class Glass(io.StringIO):
    """A file that is a terminal of `columns` x `rows`. Lines that scroll off are kept.

    `reflows`: a window that becomes narrower wraps anew what is on it, as most terminals do;
    otherwise it crops.
    """

    def __init__(self, columns: int = 80, rows: int = 24, *, reflows: bool = False) -> None:
        super().__init__()
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.Stream(self.screen)
        self._reflows = reflows

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\r\n", "\n").replace("\n", "\r\n"))
        return super().write(text)

    @property
    def size(self) -> tuple[int, int]:
        return self.screen.columns, self.screen.lines

    @property
    def environment(self) -> dict[str, str]:
        """What this terminal says of itself."""
        return {"TERM": "xterm-256color" if self._reflows else "linux"}

    def console(self, **arguments: object) -> Console:
        """A Rich console that writes here."""
        return Console(
            file=self,
            width=self.screen.columns,
            height=self.screen.lines,
            force_terminal=True,
            _environ=self.environment,
            **arguments,  # type: ignore[arg-type]
        )

    @property
    def lines(self) -> list[str]:
        """All lines, those that scrolled off the top included."""
        columns = range(self.screen.columns)
        gone = ["".join(row[x].data for x in columns).rstrip() for row in self.screen.history.top]
        shown = [line.rstrip() for line in self.screen.display]
        return "\n".join([*gone, *shown]).rstrip().split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def resize(self, columns: int) -> None:
        """Give the window another width."""
        if not self._reflows or columns >= self.screen.columns:
            self.screen.resize(columns=columns)
            return
        cursor = self.screen.cursor
        above = [line.rstrip() for line in self.screen.display[: cursor.y]]
        last = self.screen.display[cursor.y][: cursor.x]
        wrapped = [row for line in [*above, last] for row in _cut(line, columns)]
        self.screen.resize(columns=columns)
        self.screen.reset()
        self._stream.feed("\r\n".join(wrapped))


def _cut(line: str, columns: int) -> list[str]:
    return [line[i : i + columns] for i in range(0, len(line), columns)] or [""]
