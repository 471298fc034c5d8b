"""What a pair learns of the machine it runs on: the costs of its rounds, and which blocks pay.

The costs are measured behind a real context, once for every order of magnitude of its length, and
kept in a file for the chip, the pair and all else that they depend on, unless the machine was so
busy that they cannot be trusted. A measurement is a round that is never committed, so the context
stays as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median

import mlx.core as mx

from .._version import __version__
from .blocks import COPIED_ROWS, AutoBlocks
from .context import Context
from .costs import Costs, Timings, costs_file, read_costs, write_costs
from .sampling import Chooser

_SECONDS = 3.0
"""How long a measurement goes on, but for the ends, which are timed twice in any case."""
_REPEATS = 4
"""How often each count of rows is timed at most; the least counts, as others hold disturbances."""
_STEADY = 1.25
"""How much more than the least the next of these timings may be, or something else was running."""

_Pass = tuple[Callable[[Context, Chooser, int], None], int]
"""What is timed, and for how many rows."""


class Tuning:
    """Costs and policies of a pair whose drafter's blocks have up to `rows` rows; 1: no drafter.

    `facts` tell the pair and how it computes; costs are kept in `folder`, or only in memory. In
    what follows, `drafts` tells whether the drafter takes part.
    """

    def __init__(
        self, rows: int, facts: Mapping[str, object] | None = None, folder: Path | None = None
    ) -> None:
        self._rows = rows
        self._facts = {**(facts or {}), **_machine()}
        self._folder = folder
        self._costs: dict[tuple[bool, bool], Costs] = {}
        self._policies: dict[tuple[bool, bool, bool], AutoBlocks] = {}

    def costs(self, chooser: Chooser, drafts: bool = True) -> Costs:
        """What rounds cost where tokens are chosen like this: greedily, or drawn."""
        which = (chooser.sampling.greedy, drafts)
        if which not in self._costs:
            self._costs[which] = self._kept(chooser, drafts)
        return self._costs[which]

    def blocks(self, chooser: Chooser, copies: bool, drafts: bool = True) -> AutoBlocks:
        """The policy, which remembers from one generation to the next how drafts did."""
        which = (chooser.sampling.greedy, copies, drafts)
        if which not in self._policies:
            self._policies[which] = AutoBlocks(self.costs(chooser, drafts), copies=copies)
        return self._policies[which]

    def measure(
        self,
        context: Context,
        chooser: Chooser,
        clock: Callable[[], float] = time.perf_counter,
        drafts: bool = True,
    ) -> float:
        """Learn what rounds cost behind `context`; returns the seconds it took, 0 where known."""
        costs = self.costs(chooser, drafts)
        length = len(context.tokens)
        if costs.covers(length):
            return 0.0
        begin = clock()
        timings, steady = time_rounds(context, chooser, *costs.rows_to_measure(), clock)
        costs.add(length, timings)
        if steady and (file := self._file(chooser, drafts)):
            # To what is kept, not with all that is known: some of that a busy machine gave.
            kept = self._kept(chooser, drafts)
            kept.add(length, timings)
            with suppress(OSError):  # where nothing can be kept, it is measured anew next time
                write_costs(file, kept, self._facts)
        return clock() - begin

    def _kept(self, chooser: Chooser, drafts: bool) -> Costs:
        """The costs in the file, none where there is no such file."""
        drafted = self._rows if drafts else 1
        rows = max(drafted, COPIED_ROWS)
        file = self._file(chooser, drafts)
        return read_costs(file, rows, drafted) if file else Costs(rows, drafted)

    def _file(self, chooser: Chooser, drafts: bool) -> Path | None:
        how = {"greedy": chooser.sampling.greedy, "drafts": drafts}
        return costs_file(self._folder, {**self._facts, **how}) if self._folder else None


def time_rounds(
    context: Context,
    chooser: Chooser,
    verified: Sequence[int],
    drafted: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, bool]:
    """Seconds of verifications and of drafts behind `context`, for these counts of rows.

    Those of one row and of the most are timed twice, others as long as there is time. The second
    result tells whether repeated timings agree: on a busy machine they do not.
    """
    end = clock() + _SECONDS
    ends = [(_verification, verified[0]), (_verification, verified[-1])]
    ends += [(_draft, rows) for rows in drafted[-1:]]
    passes = [(_verification, rows) for rows in verified] + [(_draft, rows) for rows in drafted]
    times: dict[_Pass, list[float]] = {each: [] for each in (*ends, *passes)}
    for _ in range(_REPEATS):
        for (part, rows), so_far in times.items():
            if (len(so_far) < 2 and (part, rows) in ends) or clock() <= end:
                begin = clock()
                part(context, chooser, rows)
                so_far.append(clock() - begin)
    least = {each: min(of_each) for each, of_each in times.items() if of_each}
    timings = Timings(
        {rows: seconds for (part, rows), seconds in least.items() if part is _verification},
        {rows: seconds for (part, rows), seconds in least.items() if part is _draft},
    )
    repeated = [
        sorted(of_each)[:2] for (part, _), of_each in times.items() if part is _verification
    ]
    spreads = [pair[1] / pair[0] for pair in repeated if len(pair) == 2]
    return timings, median(spreads) < _STEADY


def _verification(context: Context, chooser: Chooser, rows: int) -> None:
    """A pass of the target over `rows` rows and its choices, forgotten on leaving the round."""
    block = mx.array([_last(context)] * rows, mx.int32)
    with context.target.round(context.cache, rows) as turn:
        logits, taps = turn.forward(block[None])
        choices, enough = chooser.likely(logits[0], [*context.tokens, _last(context)], block[1:])
        mx.eval(choices, enough, [] if taps is None else taps)


def _draft(context: Context, chooser: Chooser, rows: int) -> None:
    if context.drafting is not None:
        history = [*context.tokens, _last(context)]
        mx.eval(context.drafting.propose(history, rows, chooser))


def _last(context: Context) -> int:
    return context.tokens[-1] if context.tokens else 0


def _machine() -> dict[str, object]:
    """What costs depend on apart from the pair."""
    return {
        "chip": mx.device_info().get("device_name"),
        "cores": os.cpu_count(),
        "mlx": metadata.version("mlx"),
        "dflash-mlx": __version__,
    }
