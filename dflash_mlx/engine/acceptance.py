"""How often drafts are right: an estimate for each place in a block that follows the text.

Text changes its mind: prose, then code, then a table. So what was seen fades, by a constant share
a round, and about the last thirty rounds count, unless there is no mistaking that it has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_FADING = 0.97
"""What is left of an observation after a round: half of it after 23 rounds.

With less, chance alone now and then makes a drafter that pays a little look like one that does not.
"""
_SURPRISE = 3e-4
"""The text has changed where chance would bring so many wrong first drafts in a row this seldom."""
_HOPE = 8.0
"""How many observations of the first draft the prior is worth: a few wrong drafts are chance."""
_HOPE_AGAIN = 2.0
"""And after a pause, when it is known that they were not."""
_NEXT = 8.0
"""How many observations of a draft the estimate for the draft before it is worth."""


class Acceptance:
    """For each draft of a block: how likely it is right, given that those before it are.

    Deep drafts are seldom seen, since one wrong draft hides the rest. Each estimate therefore
    leans on the one before it, and the first on `prior`: what was never tried is taken to be as
    good as the deepest draft that was, so a longer block is tried where short ones do well.
    """

    def __init__(self, drafts: int, prior: float) -> None:
        self._hope = self._prior = prior
        self._weight = _HOPE
        self._right = [0.0] * drafts
        self._seen = [0.0] * drafts
        self._failures = 0  # rounds in a row of which no draft was right
        self._chance = 1.0  # of as many, by what was seen before

    def observe(self, drafted: int, accepted: int) -> None:
        """A round verified `drafted` drafts, of which the first `accepted` were right."""
        self._chance = 1.0 if accepted else self._chance * (1 - self._estimates()[0])
        self._failures = 0 if accepted else self._failures + 1
        self._right = [_FADING * value for value in self._right]
        self._seen = [_FADING * value for value in self._seen]
        for place in range(min(accepted + 1, drafted)):
            self._seen[place] += 1
            self._right[place] += place < accepted
        if self._chance < _SURPRISE:  # all that counts now are these failures
            self._right = [0.0] * len(self._right)
            self._seen = [float(self._failures)] + [0.0] * (len(self._seen) - 1)
            self._chance = 1.0

    def doubt(self, most: float) -> None:
        """Keep the estimates, but as if each rested on no more than `most` observations.

        The prior of the first draft moves half the way to what was seen, and counts for less.
        """
        estimates = self._estimates()
        self._prior = (self._hope + estimates[0]) / 2
        self._weight = _HOPE_AGAIN
        for place, estimate in enumerate(estimates):
            self._seen[place] = min(self._seen[place], most)
            self._right[place] = self._seen[place] * estimate

    def tokens(self) -> Sequence[float]:
        """Expected tokens of a round with 1, 2, 3, ... rows: its accepted drafts and one more."""
        all_right = accumulate(self._estimates(), mul)
        return list(accumulate(all_right, initial=1.0))

    def _estimates(self) -> list[float]:
        """For each draft: how likely it is right if those before it are."""
        estimate, weight = self._prior, self._weight
        estimates = []
        for right, seen in zip(self._right, self._seen, strict=True):
            estimate = (right + weight * estimate) / (seen + weight)
            weight = _NEXT
            estimates.append(estimate)
        return estimates
