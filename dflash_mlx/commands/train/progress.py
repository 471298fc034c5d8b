"""What a person who waits is told, and how they stop what takes long."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ...training.walking import Acceptance

Item = TypeVar("Item")

_SECONDS = 5.0
"""How often a line on progress is printed."""


def acceptance_line(side: Acceptance) -> str:
    """The figures of some rounds."""
    shares = " ".join(f"{share:.2f}".lstrip("0") for share in side.by_position)
    text = f"acceptance length {side.length:.3f} · by position {shares}"
    return f"{text} · {len(side.accepted):,} rounds"


def say(line: str) -> None:
    """A line for the person who waits, on standard error."""
    print(line, file=sys.stderr, flush=True)


class Pace:
    """How fast a count grows in this process, and when to say so again."""

    def __init__(self) -> None:
        self._start = self._said = time.monotonic()
        self._first: float | None = None

    def due(self, count: float) -> bool:
        """Whether it is time for a line; the first count that is told is where growth begins."""
        if self._first is None:
            self._first = count
        now = time.monotonic()
        if now - self._said < _SECONDS:
            return False
        self._said = now
        return True

    def rate(self, count: float) -> float:
        """How much the count grew, by the second."""
        return (count - (self._first or 0)) / max(time.monotonic() - self._start, 1e-6)

    def left(self, done: float, total: float) -> str:
        """ " · about 3 min left", or nothing where that is not known."""
        rate = self.rate(done)
        if rate <= 0 or done >= total:
            return ""
        seconds = (total - done) / rate
        if seconds < 90:
            return f" · about {seconds:.0f} s left"
        if seconds < 5400:
            return f" · about {seconds / 60:.0f} min left"
        return f" · about {seconds / 3600:.1f} h left"


def paced(items: Iterable[Item], total: int, verb: str, noun: str = "") -> Iterator[Item]:
    """The items, each as it is done; now and then a line says how many of `total` are."""
    pace = Pace()
    pace.due(0)
    for done, item in enumerate(items, 1):
        if pace.due(done):
            say(f"{verb} {done} of {total}{noun}{pace.left(done, total)}")
        yield item


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks to stop at the next safe place; a second one stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("stopping behind this step (Ctrl-C again: at once) ...")

    earlier = {kind: signal.signal(kind, ask) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for kind, handler in earlier.items():
            signal.signal(kind, handler)
