"""Medians, and how sure one may be of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

RESAMPLES = 2000
DRIFT = 0.05
"""A machine whose plain decoding changed by more than this share did not measure one thing."""


@dataclass(frozen=True)
class Estimate:
    """A median, and the interval that holds 95 % of the medians of resampled values.

    Of a single value there is no interval: `low` and `high` are then None.
    """

    median: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """The median of `values` and its bootstrap interval, the same for a seed; None of no values."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], None, None)
    draws = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Estimate(float(np.median(values)), float(low), float(high))


def paired_ratios(
    ours: Mapping[tuple[str, int], float], theirs: Mapping[tuple[str, int], float]
) -> list[float]:
    """`ours / theirs` for each prompt that both have, keyed by (prompt, run).

    The runs of a prompt are no independent witnesses, so their median stands for them.
    """
    by_prompt: dict[str, list[float]] = {}
    for (prompt, run), speed in ours.items():
        if other := theirs.get((prompt, run)):
            by_prompt.setdefault(prompt, []).append(speed / other)
    return [median(ratios) for ratios in by_prompt.values()]


def drift(speeds: Sequence[float]) -> float:
    """How far, as a share of the first speed, any later one is from it; 0 of fewer than two."""
    return max((abs(speed / speeds[0] - 1) for speed in speeds[1:]), default=0.0)
