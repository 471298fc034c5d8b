"""The loss: its weights against NumPy, its gradient against automatic differentiation."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.training.exponential import exponential, plain
from dflash_mlx.training.loss import (
    HeadLosses,
    Weighting,
    decay,
    decay_gamma,
    dpace,
    head_losses,
)

BLOCKS, ROWS, WIDTH, VOCABULARY = 12, 7, 16, 50


@pytest.fixture
def table() -> mx.array:
    return mx.random.normal((VOCABULARY, WIDTH), key=mx.random.key(1))


@pytest.fixture
def hidden() -> mx.array:
    return mx.random.normal((BLOCKS, ROWS, WIDTH), key=mx.random.key(2))


@pytest.fixture
def labels() -> mx.array:
    return mx.random.randint(0, VOCABULARY, (BLOCKS, ROWS), key=mx.random.key(3))


@pytest.fixture
def counts() -> mx.array:
    """Blocks of all lengths: 7, 7, 6, ..., 1, 0."""
    return mx.arange(ROWS)[None] < mx.minimum(mx.arange(BLOCKS), ROWS)[::-1][:, None]


def oracle(logits: mx.array, labels: mx.array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    x = np.array(logits, np.float64)
    chosen = np.take_along_axis(x, np.array(labels)[..., None], -1)[..., 0]
    return np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1) - chosen


def test_decay_is_the_papers_formula(counts: mx.array) -> None:
    weights = np.array(decay(4.0)(mx.zeros((BLOCKS, ROWS)), counts))
    expected = np.exp(-np.arange(ROWS) / 4.0) * np.array(counts)
    assert np.allclose(weights, expected, rtol=1e-6)


def test_gamma_is_the_papers_for_its_three_blocks() -> None:
    assert [decay_gamma(rows) for rows in (8, 10, 16)] == [4, 5, 7]
    assert [decay_gamma(rows) for rows in (2, 4, 9, 13, 32)] == [1, 2, 4.5, 6, 7]


def test_dpace_is_the_sum_of_the_chances_that_depend_on_a_row(counts: mx.array) -> None:
    entropy = mx.random.uniform(0, 6, (BLOCKS, ROWS), key=mx.random.key(5))
    weights = np.array(dpace(0.5)(entropy, counts))
    for block in range(BLOCKS):
        rows = int(np.array(counts)[block].sum())
        chances = 0.5 * np.exp(-np.array(entropy, np.float64)[block]) + 0.5
        for k in range(ROWS):
            expected = sum(np.prod(chances[: m + 1]) for m in range(k, rows)) if k < rows else 0
            assert weights[block, k] == pytest.approx(expected, rel=1e-5)


def test_dpace_gives_no_gradient_of_its_own(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    """Weights are constants: the gradient is that of sum(w CE) with w held fast."""
    check_gradient(table, hidden, labels, counts, dpace())


def test_the_gradient_under_decay(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    check_gradient(table, hidden, labels, counts, decay(4.0))


def check_gradient(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array, weigh: Weighting
) -> None:
    def total(h: mx.array) -> mx.array:
        logits = h @ table.T
        chosen = mx.take_along_axis(logits, labels[..., None], -1)[..., 0]
        entropy = mx.logsumexp(logits, -1) - chosen
        return (mx.stop_gradient(weigh(entropy, counts)) * entropy).sum()

    value, gradient = mx.value_and_grad(total)(hidden)
    sums, ours, _ = head_losses(lambda h: h @ table.T, hidden, labels, counts, weigh, 10**6)
    assert sums.loss == pytest.approx(value.item(), rel=1e-5)
    assert mx.allclose(gradient, ours, rtol=1e-4, atol=1e-5)


def test_a_softcapped_head_is_differentiated_through(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    def head(h: mx.array) -> mx.array:
        return mx.tanh(h @ table.T / 3) * 3

    def total(h: mx.array) -> mx.array:
        logits = head(h)
        chosen = mx.take_along_axis(logits, labels[..., None], -1)[..., 0]
        return ((mx.logsumexp(logits, -1) - chosen) * decay(4.0)(chosen, counts)).sum()

    _, ours, _ = head_losses(head, hidden, labels, counts, decay(4.0), 10**6)
    assert mx.allclose(mx.grad(total)(hidden), ours, rtol=1e-4, atol=1e-5)


def test_chunks_change_nothing(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    def run(rows: int) -> HeadLosses:
        return head_losses(lambda h: h @ table.T, hidden, labels, counts, dpace(), rows)

    (whole, gradient, _), (parts, pieces, _) = run(10**6), run(2 * ROWS)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    assert (parts.blocks, parts.accepted) == (whole.blocks, whole.accepted)
    assert mx.allclose(gradient, pieces, rtol=1e-5, atol=1e-6)


def test_a_head_that_knows_nothing_costs_ln_of_the_vocabulary(
    hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    flat = mx.zeros((VOCABULARY, WIDTH))
    sums, *_ = head_losses(lambda h: h @ flat.T, hidden, labels, counts, dpace(), 10**6)
    assert sums.mean == pytest.approx(math.log(VOCABULARY), rel=1e-5)


def test_only_supervised_rows_give_loss_and_gradient(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    others = mx.where(counts, labels, (labels + 1) % VOCABULARY)
    one = head_losses(lambda h: h @ table.T, hidden, labels, counts, dpace(), 10**6)
    two = head_losses(lambda h: h @ table.T, hidden, others, counts, dpace(), 10**6)
    assert one[0] == two[0]
    assert mx.array_equal(one[1], two[1])
    assert mx.abs(mx.where(counts[..., None], 0, one[1])).max() == 0
    assert (mx.abs(one[1]).max(-1) > 0).astype(mx.int32).sum() == counts.sum()


def test_where_nothing_counts_all_stays_finite(
    table: mx.array, hidden: mx.array, labels: mx.array
) -> None:
    none = mx.zeros(labels.shape, mx.bool_)
    sums, gradient, _ = head_losses(lambda h: h @ table.T, hidden, labels, none, dpace(), 10**6)
    assert (sums.mean, sums.blocks, sums.anchor_accept) == (0.0, 0, 1.0)
    assert mx.abs(gradient).max() == 0


def test_a_label_that_the_head_does_not_know_is_skipped_and_ends_the_chance(
    table: mx.array, hidden: mx.array, labels: mx.array
) -> None:
    counts = mx.ones(labels.shape, mx.bool_)
    partly = mx.where(mx.arange(ROWS) == 2, -1, labels)
    sums, gradient, _ = head_losses(lambda h: h @ table.T, hidden, partly, counts, dpace(), 10**6)
    assert math.isfinite(sums.loss)
    assert mx.abs(gradient[:, 2]).max() == 0
    entropy = mx.array(oracle(hidden @ table.T, labels).astype(np.float32))
    entropy = mx.where(mx.arange(ROWS) == 2, math.inf, entropy)
    weights = np.array(dpace()(entropy, counts), np.float64)
    expected = np.where(np.arange(ROWS) == 2, 0, weights)
    assert sums.weight == pytest.approx(expected.sum(), rel=1e-5)


def test_accepted_drafts_are_the_right_ones_before_the_first_wrong_one() -> None:
    table = mx.eye(4)
    labels = mx.array([[0, 1, 2], [0, 1, 2], [0, 1, 2], [3, 1, 2]])
    shown = mx.array([[0, 1, 2], [0, 3, 2], [0, 1, 2], [0, 1, 2]])
    counts = mx.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]]).astype(mx.bool_)
    sums, *_ = head_losses(lambda h: h @ table.T, table[shown], labels, counts, dpace(), 100)
    assert (sums.accepted, sums.blocks) == (3 + 1 + 2 + 0, 4)
    assert sums.anchor_accept == pytest.approx(1 + 6 / 4)


def test_the_fast_exponential_is_near_enough_for_a_gradient(
    table: mx.array, hidden: mx.array, labels: mx.array, counts: mx.array
) -> None:
    x = mx.concatenate([mx.linspace(-60, 0, 1001), mx.array([-1e4, -mx.inf])])[None]
    fast, exact = exponential("cpu", True)(x + 7, mx.array(7.0)), mx.exp(x)
    assert (mx.abs(fast - exact) <= 1e-4 * exact + 1e-30).all()
    one = head_losses(lambda h: h @ table.T, hidden, labels, counts, dpace(), 10**6)
    two = head_losses(
        lambda h: h @ table.T, hidden, labels, counts, dpace(), 10**6, exponential("cpu", True)
    )
    assert two[0].loss == pytest.approx(one[0].loss, rel=1e-4)
    assert mx.allclose(one[1], two[1], rtol=1e-3, atol=1e-4)


def test_where_mlx_does_not_compile_its_own_exponential_is_taken() -> None:
    assert exponential("cpu", False) is plain
    assert exponential("metal", True) is plain
