"""What the keyboard does while nobody reads it: nothing is echoed, and nothing is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_echo(*, whole_lines: bool) -> Iterator[None]:
    """Keys typed within this block are not shown; the next prompt reads them. Ctrl-C still works.

    whole_lines: whether that prompt reads lines, or single keys as prompt-toolkit does, for which
    Enter must not be changed into a line feed.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[3] &= ~termios.ECHO
    if not whole_lines:
        quiet[0] &= ~termios.ICRNL
        quiet[3] &= ~termios.ICANON
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
