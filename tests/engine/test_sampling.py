"""The one rule of choice: the law of what is drawn, the filters, and the penalties row by row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors
from scipy.stats import chisquare

from dflash_mlx.backend import prepare
from dflash_mlx.engine.decode import as_ints, verify
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser, _largest, _penalized

LOGITS = mx.array([2.0, 1.5, 1.4, 0.3, 0.0, -0.5, -1.0, -3.0])
DRAWS = 20_000
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "warm": Sampling(temperature=1.7),
    "cool": Sampling(temperature=0.5),
    "top-k": Sampling(temperature=0.8, top_k=4),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p": Sampling(temperature=1.3, min_p=0.1),
    "all": Sampling(temperature=0.9, top_k=6, top_p=0.95, min_p=0.05),
}


def law(logits: mx.array, sampling: Sampling) -> np.ndarray:
    """The probabilities that `sampling` asks for, in float64: filters untempered, then the heat."""
    scores = np.array(logits, np.float64)
    probabilities = np.exp(scores) / np.exp(scores).sum()
    kept = np.ones(len(scores), bool)
    ranked = np.argsort(-probabilities)
    before = np.cumsum(probabilities[ranked]) - probabilities[ranked]
    kept[ranked[before >= sampling.top_p]] = False
    kept[probabilities < sampling.min_p * probabilities.max()] = False
    if sampling.top_k:
        kept[ranked[sampling.top_k :]] = False
    weights = np.where(kept, np.exp(scores / sampling.temperature), 0)
    return weights / weights.sum()


@pytest.fixture
def no_compiler() -> Iterator[None]:
    """mlx-lm compiles its filters; here the compiler would take longer than they do."""
    mx.disable_compile()
    yield
    if prepare(exact=sys.platform == "linux").compiled:
        mx.enable_compile()


def draw(chooser: Chooser, logits: mx.array, rows: int) -> np.ndarray:
    """`rows` choices from one distribution, at neighbouring positions."""
    block = mx.broadcast_to(logits, (rows, logits.size))
    return np.array(chooser.choose(block, [0], mx.zeros([rows - 1], mx.int32)))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_are_drawn_by_the_law_that_was_asked_for(sampling: Sampling) -> None:
    expected = law(LOGITS, sampling)
    counts = np.bincount(draw(Chooser(sampling, (11, 12)), LOGITS, DRAWS), minlength=8)

    kept = expected > 0
    assert (counts[~kept] == 0).all()
    assert chisquare(counts[kept], DRAWS * expected[kept]).pvalue > 1e-4


def test_neighbouring_positions_draw_independently() -> None:
    sampling = SAMPLINGS["plain"]
    expected = law(LOGITS, sampling)
    draws = draw(Chooser(sampling, (3, 4)), LOGITS, DRAWS)

    pairs = np.bincount(draws[:-1:2] * 8 + draws[1::2], minlength=64)

    assert chisquare(pairs, DRAWS / 2 * np.outer(expected, expected).ravel()).pvalue > 1e-4


def test_seeds_draw_independently_at_one_position() -> None:
    sampling = SAMPLINGS["plain"]
    expected = law(LOGITS, sampling)
    draws = [draw(Chooser(sampling, (seed, 0)), LOGITS, 20) for seed in range(100)]

    counts = np.bincount(np.concatenate(draws), minlength=8)

    assert chisquare(counts, 2000 * expected).pvalue > 1e-4
    assert len({tuple(row) for row in draws}) == 100


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=7),
        Sampling(temperature=1.0, top_p=0.6),
        Sampling(temperature=1.0, min_p=0.2),
        Sampling(temperature=1.0, top_k=9, top_p=0.8, min_p=0.05),
        Sampling(temperature=1.0, top_k=100, top_p=0.9),
    ],
)
def test_the_filters_keep_the_tokens_that_mlx_lm_keeps(sampling: Sampling) -> None:
    """Every token that either could ever draw: the logits are flat enough to see them all."""
    for seed in range(3):
        logits = mx.random.normal((1, 24), key=mx.random.key(seed))
        filtered = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if sampling.top_p < 1:
            filtered = apply_top_p(filtered, sampling.top_p)
        if sampling.min_p:
            filtered = apply_min_p(filtered, sampling.min_p)
        if 0 < sampling.top_k < 24:
            filtered = apply_top_k(filtered, sampling.top_k)
        theirs = set(np.flatnonzero(np.isfinite(np.array(filtered[0]))).tolist())

        ours = set(draw(Chooser(sampling, (seed, 1)), logits[0], 4000).tolist())

        assert ours == theirs


@pytest.mark.parametrize("only", [{"min_p": 1.0}, {"top_k": 1}, {"top_p": 1e-6}])
def test_the_strictest_filters_leave_the_likeliest(only: dict[str, Any]) -> None:
    chosen = draw(Chooser(Sampling(temperature=2.0, **only), (5, 6)), LOGITS, 200)

    assert set(chosen.tolist()) == {0}


def test_temperature_zero_takes_the_likeliest_whatever_the_seed() -> None:
    logits = mx.random.normal((9, 50), key=mx.random.key(0))
    drafts = mx.zeros([8], mx.int32)

    for key in ((0, 0), (1, 2)):
        chosen = Chooser(Sampling(top_k=3, top_p=0.5), key).choose(logits, [1], drafts)
        assert chosen.tolist() == mx.argmax(logits, axis=-1).tolist()


def test_probabilities_are_float32_even_of_a_bfloat16_target() -> None:
    """In bfloat16, top-p over a large flat vocabulary keeps all of it (dflash.md, section 4)."""
    size, rows = 4096, 100
    logits = mx.broadcast_to(-mx.arange(size) / size, (rows, size)).astype(mx.bfloat16)
    sampling = Sampling(temperature=1.0, top_p=0.25)
    drafts = mx.zeros([rows - 1], mx.int32)

    chosen = Chooser(sampling, (1, 1)).choose(logits, [0], drafts)

    kept = np.flatnonzero(np.cumsum(law_of(logits[0])) < 0.25 + 0.01)
    assert mx.max(chosen).item() <= kept[-1]


def law_of(logits: mx.array) -> np.ndarray:
    """Softmax in float64."""
    weights = np.exp(np.array(logits.astype(mx.float32), np.float64))
    return weights / weights.sum()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_row_of_a_block_chooses_as_it_would_alone(sampling: Sampling) -> None:
    logits = mx.random.normal((8, 96), key=mx.random.key(5))
    history, drafts = [4, 9], [3, 1, 4, 1, 5, 9, 2]
    chooser = Chooser(sampling, (21, 22))

    together = chooser.choose(logits, history, mx.array(drafts)).tolist()

    none = mx.zeros([0], mx.int32)
    alone = [chooser.choose(logits[j : j + 1], history + drafts[:j], none).item() for j in range(8)]
    assert together == alone


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_drafter_with_the_targets_logits_guesses_the_targets_choice(sampling: Sampling) -> None:
    """Same rule, same noise, same position: so sampling costs no acceptance (reports 11, 12)."""
    logits = mx.random.normal((8, 48), key=mx.random.key(6))
    chooser = Chooser(sampling, (31, 32))

    guesses = chooser.draft(logits, [7, 8])

    assert guesses.tolist() == chooser.choose(logits, [7, 8], guesses[:-1]).tolist()


def test_the_largest_logits_are_found_by_groups() -> None:
    """Against a full sort, with a vocabulary of many groups, of few, and of broken ones."""
    for vocabulary, count in ((64 * 40, 8), (64 * 40, 64), (64 * 3, 8), (1000, 8)):
        logits = mx.random.normal((3, vocabulary), key=mx.random.key(vocabulary))
        ids = np.sort(np.array(_largest(logits, count)), axis=-1)
        expected = np.sort(np.argsort(-np.array(logits), axis=-1)[:, :count], axis=-1)
        assert (ids == expected).all()


PENALTIES = {
    "bias": Sampling(logit_bias={3: 4.0, 5: -2.5}),
    "repetition": Sampling(repetition_penalty=1.4, repetition_context_size=4),
    "a longer repetition": Sampling(repetition_penalty=1.4),
    "presence": Sampling(presence_penalty=0.7, presence_context_size=5),
    "frequency": Sampling(frequency_penalty=0.6, frequency_context_size=6),
    "a negative frequency": Sampling(frequency_penalty=-0.6),
    "all": Sampling(
        logit_bias={1: 1.0, 2: -1.0},
        repetition_penalty=1.2,
        repetition_context_size=3,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        frequency_context_size=30,
    ),
}


@pytest.mark.parametrize("sampling", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("history", [[3], [1, 2, 1, 3, 3, 7, 1, 2, 5]], ids=["short", "long"])
def test_each_row_is_penalized_as_mlx_lm_does_after_the_drafts_before_it(
    sampling: Sampling, history: list[int]
) -> None:
    drafts = [2, 2, 3, 9, 2, 1]
    logits = mx.random.normal((7, 12), key=mx.random.key(8)) * 2

    ours = _penalized(logits, sampling, history, mx.array(drafts))

    for j in range(7):
        tokens, row = mx.array(history + drafts[:j]), mx.array(logits[j : j + 1])
        for process in make_logits_processors(
            dict(sampling.logit_bias),
            sampling.repetition_penalty,
            sampling.repetition_context_size,
            sampling.presence_penalty,
            sampling.presence_context_size,
            sampling.frequency_penalty,
            sampling.frequency_context_size,
        ):
            row = process(tokens, row)
        np.testing.assert_allclose(np.array(ours[j]), np.array(row[0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sampling", PENALTIES.values(), ids=PENALTIES)
def test_a_drafter_is_penalized_for_what_came_before_its_block(sampling: Sampling) -> None:
    """Else acceptance falls to nothing as the context grows (report 36)."""
    logits = mx.random.normal((5, 12), key=mx.random.key(9)) * 2
    history = [1, 2, 1, 3, 3, 7]
    none = mx.zeros([0], mx.int32)
    chooser = Chooser(sampling)

    guesses = chooser.draft(logits, history).tolist()

    assert guesses == [chooser.choose(logits[j : j + 1], history, none).item() for j in range(5)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.1, top_p=0.9),
        Sampling(temperature=1.1, min_p=0.02),
        Sampling(temperature=0.9, top_p=0.97, min_p=0.001),
        Sampling(temperature=0.9, top_p=0.9, top_k=1000),
        Sampling(temperature=0.9, top_p=0.9, frequency_penalty=1.0),
    ],
)
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "many are equal"])
def test_the_likeliest_tokens_are_enough_or_said_not_to_be(
    sampling: Sampling, coarse: bool
) -> None:
    """Rows from flat to sharp: the choice is the same wherever it is said to be known."""
    sharpness = mx.array([0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0] * 5)[:, None]
    logits = mx.random.normal((40, 2048), key=mx.random.key(9)) * sharpness
    logits = mx.round(logits * 2) / 2 if coarse else logits
    chooser, drafts = Chooser(sampling, (5, 6)), mx.zeros([39], mx.int32)

    choices, enough = chooser.likely(logits, [3, 4], drafts)

    known = np.array(enough) == 1
    truth = np.array(chooser.choose(logits, [3, 4], drafts))
    assert 0 < known.sum() < 40
    assert (np.array(choices)[known] == truth[known]).all()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), SAMPLINGS["top-k"]])
def test_where_no_tail_is_cut_the_first_look_is_the_last(sampling: Sampling) -> None:
    logits = mx.random.normal((5, 2048), key=mx.random.key(2))
    chooser, drafts = Chooser(sampling, (5, 6)), mx.zeros([4], mx.int32)

    choices, enough = chooser.likely(logits, [3], drafts)

    assert enough.tolist() == [1] * 5
    assert choices.tolist() == chooser.choose(logits, [3], drafts).tolist()


@pytest.mark.parametrize("flat_row", range(4))
def test_a_round_reads_again_only_where_a_row_that_counts_is_not_known(flat_row: int) -> None:
    """Rows behind the first wrong draft decide nothing."""
    logits = mx.random.normal((4, 2048), key=mx.random.key(1)) * 20
    logits[flat_row] = logits[flat_row] * 0.001
    chooser, history = Chooser(Sampling(temperature=1.0, top_p=0.9), (8, 9)), [7]
    truth = as_ints(chooser.choose(logits, history, mx.zeros([3], mx.int32)))
    block = mx.array([7, truth[0], truth[1] + 1, 0], mx.int32)  # the second draft is wrong

    assert verify(logits, history, block, chooser) == (truth[:2], 2 if flat_row < 2 else 1)
