"""Medians, intervals and drift, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_mlx.benchmark.statistics import Estimate, drift, estimate, paired_ratios


def test_of_equal_values_one_is_sure() -> None:
    assert estimate([1.5] * 9) == Estimate(1.5, 1.5, 1.5)


def test_one_value_has_no_interval_and_none_no_median() -> None:
    assert estimate([2.0]) == Estimate(2.0, None, None)
    assert estimate([]) is None


def test_an_interval_is_the_same_for_a_seed_and_holds_the_median() -> None:
    values = [0.9, 1.0, 1.1, 1.2, 1.3, 1.9, 0.7]
    first = estimate(values, seed=3)
    assert first == estimate(values, seed=3)
    assert first is not None
    assert first.low is not None
    assert first.high is not None
    assert 0.7 <= first.low < first.median == 1.1 < first.high <= 1.9


def test_intervals_hold_the_true_median_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(100):
        found = estimate(list(rng.normal(1.0, 0.2, 25)), seed)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.0 <= found.high
    assert 88 <= held <= 100


def test_ratios_are_taken_prompt_by_prompt_and_runs_of_one_are_one() -> None:
    ours = {("a", 0): 2.0, ("a", 1): 4.0, ("a", 2): 9.0, ("b", 0): 5.0, ("c", 0): 1.0}
    theirs = {("a", 0): 1.0, ("a", 1): 1.0, ("a", 2): 1.0, ("b", 0): 10.0}
    assert paired_ratios(ours, theirs) == [4.0, 0.5]


@pytest.mark.parametrize(
    ("speeds", "share"), [([], 0.0), ([8.0], 0.0), ([8.0, 8.0], 0.0), ([10.0, 9.0, 12.0], 0.2)]
)
def test_drift_is_the_furthest_from_the_first(speeds: list[float], share: float) -> None:
    assert drift(speeds) == pytest.approx(share)
