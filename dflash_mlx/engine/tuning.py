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

from .blocks import AutoBlocks
from .context import Context
from .costs import Costs, Timings, costs_file, read_costs, write_costs
from .sampling import Chooser

_SECONDS = 2.0
"""How long a measurement goes on, if every count of rows was timed once."""
_REPEATS = 4
"""How often each count of rows is timed at most; the least counts, as others hold disturbances."""
_STEADY = 1.25
"""How much more than the least the next of these timings may be, or something else was running."""


class Tuning:
    """Costs and policies of a pair whose blocks have up to `rows` rows.

    `facts` tell the pair and how it computes; costs are kept in `folder`, or only in memory.
    """

    def __init__(
        self, rows: int, facts: Mapping[str, object] | None = None, folder: Path | None = None
    ) -> None:
        self._rows = rows
        self._facts = {**(facts or {}), **_machine()}
        self._folder = folder
        self._costs: dict[bool, Costs] = {}
        self._policies: dict[tuple[bool, bool], AutoBlocks] = {}

    def costs(self, chooser: Chooser) -> Costs:
        """What rounds cost where tokens are chosen like this: greedily, or drawn."""
        greedy = chooser.sampling.greedy
        if greedy not in self._costs:
            file = self._file(greedy)
            self._costs[greedy] = read_costs(file, self._rows) if file else Costs(self._rows)
        return self._costs[greedy]

    def blocks(self, chooser: Chooser, copies: bool) -> AutoBlocks:
        """The policy, which remembers from one generation to the next how drafts did."""
        which = (chooser.sampling.greedy, copies)
        if which not in self._policies:
            self._policies[which] = AutoBlocks(self.costs(chooser), copies=copies)
        return self._policies[which]

    def measure(
        self, context: Context, chooser: Chooser, clock: Callable[[], float] = time.perf_counter
    ) -> float:
        """Learn what rounds cost behind `context`; returns the seconds it took, 0 where known."""
        costs = self.costs(chooser)
        length = len(context.tokens)
        if costs.covers(length):
            return 0.0
        begin = clock()
        timings, steady = time_rounds(context, chooser, costs.rows_to_measure(), clock)
        costs.add(length, timings)
        if steady and (file := self._file(chooser.sampling.greedy)):
            # To what is kept, not with all that is known: some of that a busy machine gave.
            kept = read_costs(file, self._rows)
            kept.add(length, timings)
            with suppress(OSError):  # where nothing can be kept, it is measured anew next time
                write_costs(file, kept, self._facts)
        return clock() - begin

    def _file(self, greedy: bool) -> Path | None:
        return costs_file(self._folder, {**self._facts, "greedy": greedy}) if self._folder else None


def time_rounds(
    context: Context,
    chooser: Chooser,
    rows: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, bool]:
    """Seconds of a verification and of a draft behind `context`, for these counts of rows.

    The smallest and the largest count are timed twice, others as long as there is time. The second
    result tells whether repeated timings agree: on a busy machine they do not.
    """
    end = clock() + _SECONDS
    ends = (rows[0], rows[-1])
    order = [*dict.fromkeys(ends), *(count for count in rows if count not in ends)]
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in order}
    for _ in range(_REPEATS):
        for count in order:
            needed = count in ends and len(times[count]) < 2
            if needed or clock() <= end:
                verify = _seconds(_verification, context, chooser, count, clock)
                draft = _seconds(_draft, context, chooser, count, clock)
                times[count].append((verify, draft))
    timings = {
        count: (min(verify for verify, _ in of_count), min(draft for _, draft in of_count))
        for count, of_count in times.items()
        if of_count
    }
    repeated = [sorted(verify for verify, _ in of_count)[:2] for of_count in times.values()]
    spreads = [pair[1] / pair[0] for pair in repeated if len(pair) == 2]
    return timings, median(spreads) < _STEADY


def _seconds(
    part: Callable[[Context, Chooser, int], None],
    context: Context,
    chooser: Chooser,
    rows: int,
    clock: Callable[[], float],
) -> float:
    begin = clock()
    part(context, chooser, rows)
    return clock() - begin


def _verification(context: Context, chooser: Chooser, rows: int) -> None:
    """A pass of the target over `rows` rows and its choices, forgotten on leaving the round."""
    block = mx.array([_last(context)] * rows, mx.int32)
    with context.target.round(context.cache, rows) as turn:
        logits, taps = turn.forward(block[None])
        choices, enough = chooser.likely(logits[0], [*context.tokens, _last(context)], block[1:])
        mx.eval(choices, enough, [] if taps is None else taps)


def _draft(context: Context, chooser: Chooser, rows: int) -> None:
    if context.drafting is not None and rows > 1:
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
    }
