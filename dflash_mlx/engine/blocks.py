"""How many rows the next round has, and where its drafts come from.

A long block pays where drafts are right and a pass over many rows is cheap; in a hard stretch, or
far into a context, plain decoding is faster. `AutoBlocks` weighs what rounds cost on this machine
(`costs`) against how often drafts were right of late (`acceptance`). It only ever changes speed:
the target's choice at a position is the same in a block of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .acceptance import Acceptance
from .costs import Costs

COPIED_ROWS = 16
"""The most rows of a round whose drafts are copied, whatever block the drafter was trained for.

Where text repeats itself it does so at length, and kernels for a block take twice as many.
"""
LEAST_MATCH = 2
"""How many tokens must have occurred before, in a row, for their continuation to be a draft."""
_CLASSES = (2, 3, 4, 8, 16)
"""Lengths of a match from which on it counts as a better kind."""
_COPY_PRIORS = (0.5, 0.6, 0.7, 0.8, 0.9)
_DRAFTER_PRIOR = 0.6
"""How often a draft is right, before any was seen."""

_PLAIN_MUST_WIN_BY = 1.05
"""Going back to plain decoding is sticky, so a draw is not enough."""
_FIRST_PAUSE, _LONGEST_PAUSE = 64, 256
"""Rounds after which a source that does not pay is tried again: at first, and in the end."""
_DOUBT = 1.0
"""What a source was seen to do before a pause counts for so many rounds after it."""
_SETTLED = 16
"""Rounds after which a source that pays again has its pauses as short as at first."""


class Plan(NamedTuple):
    """The next round: `rows` with the anchor; `match` > 0: drafts copied behind such a match."""

    rows: int = 1
    match: int = 0


class Blocks(Protocol):
    """Decides on each round, and is told what came of it."""

    @property
    def drafts(self) -> bool:
        """Whether the drafter may be asked, and so must know the context."""

    @property
    def copies(self) -> bool:
        """Whether drafts may be copied from the context."""

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """The next round, of at most `wanted` rows.

        It stands behind `length` tokens, the last `match` of which occurred before.
        """

    def observe(self, plan: Plan, accepted: int) -> None:
        """Of the drafts of a round with `plan`, so many were right."""


class FixedBlocks:
    """The same number of rows in every round, and nothing copied."""

    copies = False

    def __init__(self, rows: int) -> None:
        self.drafts = rows > 1
        self._rows = rows

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """Always the same."""
        return Plan(min(self._rows, wanted))

    def observe(self, plan: Plan, accepted: int) -> None:
        """Learns nothing."""


class _Source:
    """Where drafts come from: how good they are, and how long to leave them alone if they are not.

    A source that does not pay is tried for a round after a pause; every trial that comes to
    nothing makes the next pause twice as long.
    """

    def __init__(self, drafts: int, prior: float) -> None:
        self.acceptance = Acceptance(drafts, prior)
        self.hopes = Acceptance(drafts, prior).tokens()
        self._pause = _FIRST_PAUSE
        self._passed_over = 0
        self._in_a_row = 0

    @property
    def paused(self) -> bool:
        """Whether other ways won of late."""
        return self._passed_over > 0

    def pass_over(self) -> bool:
        """It could have been used and was not; says whether it is time to try it."""
        self._passed_over += 1
        self._in_a_row = 0
        if self._passed_over <= self._pause:
            return False
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.acceptance.doubt(_DOUBT)
        return True

    def use(self, drafted: int, accepted: int) -> None:
        """It was used, and the first `accepted` of its drafts were right."""
        self.acceptance.observe(drafted, accepted)
        self._passed_over = 0
        self._in_a_row += 1
        if self._in_a_row == _SETTLED:
            self._pause = _FIRST_PAUSE


class _Way:
    """A way to draft the next round: a source, and what a round costs, for every count of rows."""

    def __init__(self, source: _Source, seconds: Sequence[float], match: int = 0) -> None:
        self.source, self.match = source, match
        self._seconds = seconds
        self.promise, self.rows = self._fastest(source.acceptance.tokens())

    @property
    def trial_rows(self) -> int:
        """How many rows show best whether the source has become good."""
        return self._fastest(self.source.hopes)[1]

    def could_beat(self, speed: float) -> bool:
        """Whether it would be faster if all its drafts were right."""
        return self._fastest(range(1, len(self._seconds) + 1))[0] > speed

    def _fastest(self, tokens: Sequence[float]) -> tuple[float, int]:
        """The most tokens a second, and the rows, from 2 on, that give them."""
        speeds = [t / s for t, s in zip(tokens, self._seconds, strict=False)]
        rows = max(range(2, len(speeds) + 1), key=lambda count: speeds[count - 1])
        return speeds[rows - 1], rows


class AutoBlocks:
    """The rows that promise the most tokens a second, plain decoding included.

    `costs` are in any unit of time. Where they know no drafts, drafts are copied or there are none.
    """

    def __init__(self, costs: Costs, *, copies: bool = True) -> None:
        self.drafts = costs.drafted > 1
        self.copies = copies
        self._costs = costs
        self._drafter = _Source(costs.drafted - 1, _DRAFTER_PRIOR) if self.drafts else None
        self._copies = [_Source(costs.rows - 1, prior) for prior in _COPY_PRIORS]

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """The round that promises the most, or now and then a trial of a way that did not pay."""
        if wanted == 1:
            return Plan()
        verify, draft = (seconds[:wanted] for seconds in self._costs.at(length))
        ways = []
        if self._drafter is not None:  # its block may end before that of a copy
            ways.append(_Way(self._drafter, [v + d for v, d in zip(verify, draft, strict=False)]))
        if self.copies and match >= LEAST_MATCH:
            ways.append(_Way(self._copied(match), verify, match))
        speed, plan, chosen = 1 / verify[0], Plan(), None
        if best := max(ways, key=lambda way: way.promise, default=None):
            edge = 1 if best.source.paused else _PLAIN_MUST_WIN_BY
            if best.promise * edge > speed:
                speed, plan, chosen = best.promise, Plan(best.rows, best.match), best
        for way in ways:
            if way is not chosen and way.could_beat(speed) and way.source.pass_over():
                return Plan(way.trial_rows, way.match)
        return plan

    def observe(self, plan: Plan, accepted: int) -> None:
        """Remember how many of a round's drafts were right."""
        source = self._copied(plan.match) if plan.match else self._drafter
        if plan.rows > 1 and source is not None:
            source.use(plan.rows - 1, accepted)

    def _copied(self, match: int) -> _Source:
        return self._copies[sum(match >= least for least in _CLASSES) - 1]
