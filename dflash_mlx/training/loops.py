"""Answers that go round in circles, and where they begin to.

Small models that decode greedily repeat themselves. Such text is easy to draft and teaches little,
so an answer is cut where eight tokens in a row come for the third time.
"""

from __future__ import annotations

from collections.abc import Iterable

GRAM = 8
TIMES = 3


class LoopDetector:
    """Told an answer token by token, it notices a run of `GRAM` tokens at its `TIMES`th coming.

    Comings may not overlap, lest a line of dashes or spaces count as a loop.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._seen: dict[tuple[int, ...], tuple[int, int]] = {}  # run -> (comings, end of the last)

    def push(self, token: int) -> bool:
        """Add a token; True if it completes a loop."""
        self._tokens.append(token)
        end = len(self._tokens)
        if end < GRAM:
            return False
        run = tuple(self._tokens[-GRAM:])
        comings, last_end = self._seen.get(run, (0, 0))
        if end - GRAM < last_end:
            return False
        self._seen[run] = comings + 1, end
        return comings + 1 == TIMES


def loop_start(tokens: Iterable[int]) -> int | None:
    """Where in an answer the third coming of a run of eight tokens begins; None if it never does.

    Everything before that place is worth keeping.
    """
    detector = LoopDetector()
    for place, token in enumerate(tokens):
        if detector.push(token):
            return place + 1 - GRAM
    return None
