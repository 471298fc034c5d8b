"""Ctrl-C while a reply comes: a request to stop, not an exception in the middle of things."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed."""

    asked = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within this block the first Ctrl-C only sets `asked`; a second one breaks in as usual."""
    interrupt = Interrupt()

    def note(_signal: int, _frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
