"""Drafting changes speed only: tokens equal those of plain decoding, whatever the drafts are."""

from __future__ import annotations

import pytest

from dflash_mlx.engine.options import Sampling
from tests.tiny import ORACLE, ZERO, Script, random_drafting, run, tiny_target

PROMPT = [5, 17, 99, 3, 120, 44]
LENGTH = 48
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.9, top_k=50)
BARE = Sampling(temperature=1.0)
PENALIZED = Sampling(
    temperature=0.7,
    top_k=30,
    min_p=0.01,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={7: 2.0},
)
GREEDY_PENALIZED = Sampling(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.2)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "bare": BARE,
    "penalized": PENALIZED,
    "greedy penalized": GREEDY_PENALIZED,
}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("block_size", [2, 3, 8, 16])
def test_scripted_drafts_change_no_token(
    family: str, sampling: Sampling, block_size: int
) -> None:
    target = tiny_target(family)
    plain, _, _ = run(target, PROMPT, LENGTH, sampling=sampling)
    assert len(set(plain)) > 8, "a target that repeats itself proves nothing"
    for accepts in (ZERO, ORACLE, [0, 1, 3, 2, 15, 0, 7]):
        script = Script(plain, len(PROMPT), accepts)
        tokens, steps, _ = run(
            target, PROMPT, LENGTH, drafting=script, block_size=block_size, sampling=sampling
        )
        assert tokens == plain
        rounds = steps[1:]
        assert script.rounds > 0
        counts = {(step.accepted, step.drafted) for step in rounds}
        if accepts is ZERO:
            assert all(accepted == 0 for accepted, _ in counts)
            assert len(rounds) == LENGTH - 1
        elif accepts is ORACLE:
            assert all(accepted == drafted for accepted, drafted in counts)
            assert len(rounds) == -(-(LENGTH - 1) // block_size)
        else:
            assert any(accepted == drafted > 0 for accepted, drafted in counts)
            assert any(accepted == 0 < drafted for accepted, drafted in counts)
            if block_size > 2:
                assert any(0 < accepted < drafted for accepted, drafted in counts)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_random_drafter_changes_no_token(sampling: Sampling) -> None:
    target = tiny_target("qwen3")
    plain, _, _ = run(target, PROMPT, LENGTH, sampling=sampling)
    tokens, steps, _ = run(
        target,
        PROMPT,
        LENGTH,
        drafting=random_drafting(target),
        block_size=8,
        sampling=sampling,
    )
    assert tokens == plain
    assert any(step.drafted == 7 for step in steps)
