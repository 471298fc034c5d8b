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

from ..whole_file import replacing

Timings = Mapping[int, tuple[float, float]]
"""By rows: seconds of the verification, and of the draft before it."""

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
_STEP = 64
"""Tokens of context over which costs are taken to be the same."""


class RoundCosts(NamedTuple):
    """Seconds at one context length; item r - 1 is for r rows."""

    verify: Sequence[float]
    draft: Sequence[float]


class Costs:
    """Costs between and beyond what was measured: straight lines, by rows and by length."""

    def __init__(self, rows: int, measured: Mapping[int, Timings] | None = None) -> None:
        """For blocks of up to `rows` rows. `measured` is by context length."""
        self.rows = rows
        self._measured = {length: dict(at) for length, at in (measured or {}).items()}
        self._at = -1
        self._latest: RoundCosts | None = None

    @property
    def measured(self) -> Mapping[int, Timings]:
        """What was measured, by context length."""
        return self._measured

    def rows_to_measure(self) -> list[int]:
        """Which counts of rows stand for all."""
        return sorted({rows for rows in _ROWS if rows < self.rows} | {self.rows})

    def covers(self, length: int) -> bool:
        """Whether a context of about `length` tokens was measured."""
        return any(_scale(length) == _scale(known) for known in self._measured)

    def add(self, length: int, timings: Timings) -> None:
        """Take in what was measured behind `length` tokens."""
        self._measured[length] = dict(timings)
        self._at = -1

    def at(self, length: int) -> RoundCosts:
        """Costs behind `length` tokens. Raises ValueError where nothing was measured."""
        if self._latest is None or self._at != length // _STEP:
            self._at = length // _STEP
            self._latest = RoundCosts(*(self._line(length, which) for which in (0, 1)))
        return self._latest

    def _line(self, length: int, which: int) -> list[float]:
        if not self._measured:
            raise ValueError("no round was measured yet")
        lengths = sorted(self._measured)
        by_length = [
            {rows: seconds[which] for rows, seconds in self._measured[known].items()}
            for known in lengths
        ]
        return [
            _between(length, lengths, [_between(rows, sorted(at), _values(at)) for at in by_length])
            for rows in range(1, self.rows + 1)
        ]


def costs_file(folder: Path, facts: Mapping[str, object]) -> Path:
    """Where costs are kept for a machine and a pair that `facts` tell apart from all others."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_costs(file: Path, rows: int) -> Costs:
    """The costs that `file` holds; empty ones where it holds none that can be used."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        measured = {
            int(length): {int(count): (float(v), float(d)) for count, (v, d) in at.items()}
            for length, at in kept["measured"].items()
        }
        if all(_sensible(at) for at in measured.values()):
            return Costs(rows, measured)
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        pass
    return Costs(rows)  # they are measured anew, which is all that they are for


def _sensible(at: Timings) -> bool:
    """Whether these can be timings: a pass that takes no time would be divided by."""
    times = at.values()
    return 1 in at and all(0 < v < math.inf and 0 <= d < math.inf for v, d in times)


def write_costs(file: Path, costs: Costs, facts: Mapping[str, object]) -> None:
    """Keep `costs`, with the `facts` for a person to read. Raises OSError, and leaves no part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"facts": dict(facts), "measured": costs.measured}
    with replacing(file) as new:
        new.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


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
