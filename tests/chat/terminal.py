"""A terminal for tests: a program in a pty, its screen as a person sees it, and the keys."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parents[2]
ENTER, CTRL_C, CTRL_D, TAB, ESCAPE = "\r", "\x03", "\x04", "\t", "\x1b"
UP, LEFT = "\x1b[A", "\x1b[D"


class _Screen(pyte.HistoryScreen):
    """A screen that answers questions, such as where its cursor is."""

    keyboard = -1

    def write_process_input(self, data: str) -> None:
        os.write(self.keyboard, data.encode())


class Terminal:
    """A running program and its screen of `columns` x `rows`; lines that scroll off are kept.

    The screen crops on a resize, like the Linux console, which TERM says it is.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        home: Path,
        env: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
    ) -> None:
        self.raw = b""
        self._gone: list[str] = []  # lines that scrolled off the top
        self._lines, self._lines_at = list[str](), -1  # as the screen was after so much output
        self.screen = _Screen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        self.screen.keyboard = self._master
        self._set_size()
        variables = {
            **{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")},
            "TERM": "linux",
            "HOME": str(home),
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8",
            **(env or {}),
        }
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """Paste, as a terminal with bracketed paste does: line ends come as Enter."""
        self.type("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def resize(self, columns: int) -> None:
        """Give the window another width; the program is told."""
        self.pump(0)
        self.screen.resize(columns=columns)
        self._lines_at = -1
        self._set_size()
        os.killpg(self.process.pid, signal.SIGWINCH)

    @property
    def lines(self) -> list[str]:
        """All lines so far, those that scrolled off the top included, without trailing blanks."""
        if self._lines_at == len(self.raw):
            return self._lines
        top, columns = self.screen.history.top, range(self.screen.columns)
        for row in list(top)[len(self._gone) :]:
            self._gone.append("".join(row[x].data for x in columns).rstrip())
        shown = [line.rstrip() for line in self.screen.display]
        self._lines = "\n".join([*self._gone, *shown]).rstrip().split("\n")
        self._lines_at = len(self.raw)
        return self._lines

    @property
    def text(self) -> str:
        """All lines as one string."""
        return "\n".join(self.lines)

    def wait_for(self, text: str, count: int = 1, timeout: float = 60) -> None:
        """Read the screen until `text` is on it `count` times."""
        self.wait_until(lambda: self.text.count(text) >= count, repr(text), timeout)

    def wait_for_title(self, title: str) -> None:
        """Read the screen until its window is called `title`."""
        self.wait_until(lambda: self.screen.title == title, f"title {title!r}")

    def wait_until(self, true: Callable[[], bool], what: str = "", timeout: float = 60) -> None:
        """Read the screen until something is true of it."""
        end = time.monotonic() + timeout
        while not true():
            assert time.monotonic() < end, f"no {what} on the screen:\n{self.text}"
            alive = self.pump(0.1)
            assert alive or true(), f"the program left before {what}:\n{self.text}"

    def pump(self, seconds: float) -> bool:
        """Read what comes within `seconds`; False when the program has closed its side."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # on Linux the end of a pty is an error
                return False
            if not data:
                return False
            self.raw += data
            self._stream.feed(data)
            seconds = 0
        return True

    def leave(self, timeout: float = 30) -> int:
        """Wait for the program's end; its exit code."""
        end = time.monotonic() + timeout
        while self.pump(0.1):
            assert time.monotonic() < end, f"the program goes on:\n{self.text}"
        return self.process.wait(timeout)

    def close(self) -> None:
        """End the program, if it is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
