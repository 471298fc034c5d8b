"""Drafting changes speed only: tokens equal those of plain decoding, whatever the drafts are."""

from __future__ import annotations

from functools import cache

import pytest

from dflash_mlx.engine.options import Sampling
from tests.tiny import MIXED, ORACLE, ZERO, Script, random_drafting, run, tiny_target

PROMPT = [5, 17, 99, 3, 120, 44]
LENGTH = 26
SAMPLINGS = {
    "greedy": Sampling(),
    "bare": Sampling(temperature=1.0),
    "filtered": Sampling(temperature=0.8, top_p=0.9, top_k=50),
    "penalized": Sampling(
        temperature=0.7,
        min_p=0.01,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={7: 2.0},
    ),
    "greedy penalized": Sampling(
        repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.2
    ),
}


@cache
def plain(family: str, sampling: str) -> list[int]:
    """What decoding one row at a time says."""
    tokens, _, _ = run(tiny_target(family), PROMPT, LENGTH, sampling=SAMPLINGS[sampling])
    assert len(set(tokens)) > 8, "a target that repeats itself proves nothing"
    return tokens


@pytest.mark.parametrize(
    ("family", "block_size"), [("llama", 2), ("qwen3", 3), ("llama", 8), ("qwen3", 16)]
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_scripted_drafts_change_no_token(family: str, block_size: int, sampling: str) -> None:
    truth = plain(family, sampling)
    script = Script(truth, len(PROMPT), MIXED)

    tokens, steps, _ = run(
        tiny_target(family),
        PROMPT,
        LENGTH,
        drafting=script,
        block_size=block_size,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == truth
    counts = [(step.accepted, step.drafted) for step in steps if step.drafted]
    assert len(counts) == script.rounds > 2
    assert any(accepted == drafted for accepted, drafted in counts), "full acceptance"
    assert any(accepted == 0 for accepted, _ in counts), "no acceptance"
    if block_size > 2:
        assert any(0 < accepted < drafted for accepted, drafted in counts), "partial acceptance"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_oracle_is_accepted_whole(sampling: str) -> None:
    truth = plain("qwen3", sampling)
    script = Script(truth, len(PROMPT), ORACLE)

    tokens, steps, _ = run(
        tiny_target("qwen3"),
        PROMPT,
        LENGTH,
        drafting=script,
        block_size=8,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == truth
    assert [step.accepted for step in steps] == [0, 7, 7, 7, 0]


@pytest.mark.parametrize("sampling", ["greedy", "penalized"])
def test_drafts_that_are_always_wrong_cost_rounds_and_no_token(sampling: str) -> None:
    truth = plain("llama", sampling)
    script = Script(truth, len(PROMPT), ZERO)

    tokens, steps, _ = run(
        tiny_target("llama"),
        PROMPT,
        LENGTH,
        drafting=script,
        block_size=4,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == truth
    assert len(steps) == LENGTH
    assert script.rounds == LENGTH - 2  # the first pass has no drafts, nor needs the last any


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_real_drafter_changes_no_token(sampling: str) -> None:
    target = tiny_target("qwen3")

    tokens, steps, _ = run(
        target,
        PROMPT,
        LENGTH,
        drafting=random_drafting(target),
        block_size=8,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == plain("qwen3", sampling)
    assert any(step.drafted == 7 for step in steps)
