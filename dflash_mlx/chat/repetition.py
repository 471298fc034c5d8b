"""Notices a model that has begun to say the same thing again and again."""

from __future__ import annotations

TIMES = 8
_CHARACTERS = 200  # at least so many in all: eight zeros, or a rule of dashes, are no loop
_LONGEST = 600  # characters of the span that is repeated


class RepetitionWatch:
    """Looks for a span that ends the text `TIMES` times in a row. Fed piece by piece."""

    def __init__(self) -> None:
        self._tail = ""

    def push(self, text: str) -> str | None:
        """Take in more text; return the repeated span once there is one."""
        self._tail = (self._tail + text)[-TIMES * _LONGEST :]
        return repeated_span(self._tail)


def repeated_span(text: str) -> str | None:
    """The shortest span that `text` ends with `TIMES` times or more; None where there is none."""
    for length in range(1, len(text) // TIMES + 1):
        size = max(TIMES * length, _CHARACTERS)
        if len(text) >= size and text[-1] == text[-1 - length]:
            end = text[-size:]
            if end[length:] == end[:-length]:
                return text[-length:]
    return None
