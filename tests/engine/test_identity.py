"""Drafting changes speed only: tokens equal those of plain decoding, whatever the drafts are."""

from __future__ import annotations

import copy
from functools import cache
from itertools import cycle

import pytest

from dflash_mlx.engine.blocks import AutoBlocks, Plan
from dflash_mlx.engine.costs import Costs, Timings
from dflash_mlx.engine.options import Sampling
from dflash_mlx.target.model import Target
from tests.tiny import (
    MIXED,
    ORACLE,
    ZERO,
    LongCopies,
    Script,
    random_drafting,
    repeating,
    run,
    tiny_target,
)

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


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_layers_fused_for_a_cpu_change_no_token(sampling: str) -> None:
    """Here over MLX's own BLAS: what may differ between row counts is their sums, not a choice."""
    shared = tiny_target("qwen3")
    target = Target(copy.deepcopy(shared.model), shared.config, shared.tap_ids, fused=True)
    truth, _, _ = run(target, PROMPT, LENGTH, sampling=SAMPLINGS[sampling])
    script = Script(truth, len(PROMPT), MIXED, keeper=random_drafting(target))

    tokens, steps, _ = run(
        target, PROMPT, LENGTH, drafting=script, block_size=8, sampling=SAMPLINGS[sampling]
    )

    assert target.serving.fused
    assert tokens == truth
    assert {step.accepted for step in steps if step.drafted == 7} >= {0, 1, 7}


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


class Wild:
    """Rows, plain rounds among them, that change as if costs and acceptance did all the time."""

    drafts = True

    def __init__(self, *, copies: bool = False) -> None:
        self.copies = copies
        self._rows = cycle((8, 1, 1, 3, 16, 1, 2, 1, 1, 1, 5))

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """Whatever comes next; a copy wherever there can be one."""
        return Plan(min(next(self._rows) + (match > 0), wanted), match)

    def observe(self, plan: Plan, accepted: int) -> None:
        """Learns nothing."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_choice_of_rows_changes_no_token(sampling: str) -> None:
    """Full, partial and no acceptance, and plain rounds between them, with the drafter kept up."""
    truth = plain("qwen3", sampling) + [0] * 9
    target = tiny_target("qwen3")
    script = Script(truth, len(PROMPT), (15, 0, 1, 3), keeper=random_drafting(target))

    tokens, steps, _ = run(
        target, PROMPT, LENGTH, drafting=script, blocks=Wild(), sampling=SAMPLINGS[sampling]
    )

    assert tokens == truth[:LENGTH]
    counts = [(step.accepted, step.drafted) for step in steps[1:]]
    assert (7, 7) in counts, "full acceptance"
    assert any(0 < accepted < drafted for accepted, drafted in counts), "partial acceptance"
    assert any(accepted == 0 < drafted for accepted, drafted in counts), "no acceptance"
    assert counts.count((0, 0)) > 3, "plain rounds"
    assert all(step.reads == 1 for step in steps)


@pytest.mark.parametrize("words", [(7,), (7, 8)], ids=["one word", "two words"])
def test_copies_change_no_token(words: tuple[int, ...]) -> None:
    """A text of one word repeats itself for ever; one of two is copied in vain now and then."""
    target = tiny_target("qwen3")
    sampling, expected = repeating(target, PROMPT, words, 60)

    tokens, steps, _ = run(
        target,
        PROMPT,
        60,
        drafting=random_drafting(target),
        blocks=Wild(copies=True),
        sampling=sampling,
    )

    assert tokens == expected
    copied = [(step.accepted, step.drafted) for step in steps if step.copied]
    assert any(accepted == drafted > 0 for accepted, drafted in copied), "right"
    assert any(step.drafted and not step.copied for step in steps), "the drafter's"
    if len(words) > 1:
        assert any(accepted < drafted for accepted, drafted in copied), "wrong"


@pytest.mark.parametrize("drafts", [True, False], ids=["drafter", "no drafter"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_copies_longer_than_the_drafters_block_change_no_token(family: str, drafts: bool) -> None:
    """Full, partial and no acceptance of 15 drafts, with a drafter of 3 or with none."""
    target = tiny_target(family)
    accepted = set[int]()
    for words in ((7,), (7, 8)):
        sampling, expected = repeating(target, PROMPT, words, 60)

        tokens, steps, _ = run(
            target,
            PROMPT,
            60,
            drafting=random_drafting(target) if drafts else None,
            blocks=LongCopies(drafts=drafts),
            sampling=sampling,
        )

        assert tokens == expected
        accepted |= {step.accepted for step in steps if step.copied and step.drafted == 15}
        assert {step.drafted for step in steps if not step.copied} <= {0, 1, 2, 3}
    assert {0, 15} < accepted


@pytest.mark.parametrize("sampling", ["greedy", "filtered", "penalized"])
@pytest.mark.parametrize("accepts", [ORACLE, ZERO, MIXED], ids=["oracle", "zero", "mixed"])
def test_the_policy_itself_changes_no_token(sampling: str, accepts: tuple[int, ...]) -> None:
    truth = plain("llama", sampling)
    costs = Costs(16, 16, {0: Timings({1: 1.0, 2: 1.1, 16: 2.0}, {2: 0.3, 16: 0.4})})

    tokens, steps, _ = run(
        tiny_target("llama"),
        PROMPT,
        LENGTH,
        drafting=Script(truth, len(PROMPT), accepts),
        blocks=AutoBlocks(costs),
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == truth
    rows = [step.drafted + 1 for step in steps[1:-1]]
    assert max(rows) > 2
    if accepts == ZERO:
        assert [step.drafted for step in steps if not step.copied][-3:] == [0, 0, 0]
