"""What a round costs on this machine: seconds by rows and context length, measured once and kept.

A pass over several rows is not free, nor equally dear on any two machines: it depends on the chip,
the weights' type, the BLAS and the context. So it is measured (`tuning`), not assumed.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..whole_file import write_whole

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
_STEP = 64
"""Tokens of context over which costs are taken to be the same."""


class Timings(NamedTuple):
    """What was measured at one context length: seconds by rows, of a pass over that many alone."""

    verify: Mapping[int, float]
    draft: Mapping[int, float]


class RoundCosts(NamedTuple):
    """Seconds at one context length; item r - 1 is for r rows. One row needs no draft: 0."""

    verify: Sequence[float]
    draft: Sequence[float]


class Costs:
    """Costs between and beyond what was measured: straight lines, by rows and by length."""

    def __init__(
        self, rows: int, drafted: int, measured: Mapping[int, Timings] | None = None
    ) -> None:
        """For rounds of up to `rows` rows, of which the drafter fills up to `drafted` (1: none).

        `measured` is by context length.
        """
        self.rows = rows
        self.drafted = drafted
        self._measured = dict(measured or {})
        self._at = -1
        self._latest: RoundCosts | None = None

    @property
    def measured(self) -> Mapping[int, Timings]:
        """What was measured, by context length."""
        return self._measured

    def rows_to_measure(self) -> tuple[list[int], list[int]]:
        """Which counts of rows stand for all: of verifications, and of drafts."""
        verified = {self.drafted, self.rows} | {rows for rows in _ROWS if rows < self.rows}
        drafted = {self.drafted} | {rows for rows in _ROWS if rows < self.drafted}
        return sorted(verified), sorted(drafted - {1})

    def covers(self, length: int) -> bool:
        """Whether a context of about `length` tokens was measured."""
        return any(_scale(length) == _scale(known) for known in self._measured)

    def add(self, length: int, timings: Timings) -> None:
        """Take in what was measured behind `length` tokens."""
        self._measured[length] = timings
        self._at = -1

    def at(self, length: int) -> RoundCosts:
        """Costs behind `length` tokens. Raises ValueError where nothing was measured."""
        if self._latest is None or self._at != length // _STEP:
            self._at = length // _STEP
            self._latest = self._lines(length)
        return self._latest

    def _lines(self, length: int) -> RoundCosts:
        if not self._measured:
            raise ValueError("no round was measured yet")
        lengths = sorted(self._measured)
        by_length = [self._measured[known] for known in lengths]

        def line(timings: Sequence[Mapping[int, float]], rows: int) -> float:
            return _between(
                length, lengths, [_between(rows, sorted(t), _values(t)) for t in timings]
            )

        verify, draft = [at.verify for at in by_length], [at.draft for at in by_length]
        return RoundCosts(
            [line(verify, rows) for rows in range(1, self.rows + 1)],
            [0.0, *(line(draft, rows) for rows in range(2, self.drafted + 1))],
        )


def costs_file(folder: Path, facts: Mapping[str, object]) -> Path:
    """Where costs are kept for a machine and a pair that `facts` tell apart from all others."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_costs(file: Path, rows: int, drafted: int) -> Costs:
    """The costs that `file` holds; empty ones where it holds none for so many rows."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        measured = {
            int(length): Timings(_by_rows(at["verify"]), _by_rows(at["draft"]))
            for length, at in kept["measured"].items()
        }
        if all(_sensible(at, rows, drafted) for at in measured.values()):
            return Costs(rows, drafted, measured)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return Costs(rows, drafted)  # they are measured anew, which is all that they are for


def _by_rows(kept: Mapping[str, object]) -> dict[int, float]:
    return {int(rows): float(str(seconds)) for rows, seconds in kept.items()}


def _sensible(at: Timings, rows: int, drafted: int) -> bool:
    """Whether these can be timings, up to so many rows: a pass that takes no time is none."""
    known = {1, rows} <= at.verify.keys() and {drafted} - {1} <= at.draft.keys()
    return known and all(0 < t < math.inf for t in (*at.verify.values(), *at.draft.values()))


def write_costs(file: Path, costs: Costs, facts: Mapping[str, object]) -> None:
    """Keep `costs`, with the `facts` for a person to read. Raises OSError, and leaves no part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    measured = {length: at._asdict() for length, at in costs.measured.items()}
    content = {"facts": dict(facts), "measured": measured}
    write_whole(file, json.dumps(content, indent=1, default=str) + "\n")


def _scale(length: int) -> int:
    """The order of magnitude of a context, in powers of four: 0 up to 1,023 tokens, then 1 ..."""
    return max(0, (length.bit_length() - 9) // 2)


def _values(at: Mapping[int, float]) -> list[float]:
    return [at[key] for key in sorted(at)]


def _between(x: float, known: Sequence[int], values: Sequence[float]) -> float:
    """The line through the neighbours of `x`; beyond the last it goes on, but never down."""
    if len(known) == 1 or x <= known[0]:
        return values[0]
    right = min(bisect_left(known, x), len(known) - 1)
    slope = (values[right] - values[right - 1]) / (known[right] - known[right - 1])
    if x > known[right]:
        return values[right] + max(0.0, slope) * (x - known[right])
    return values[right - 1] + slope * (x - known[right - 1])
