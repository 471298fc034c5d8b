"""For every target family, drafting changes speed only: tokens equal those of plain decoding."""

from __future__ import annotations

from functools import cache

import pytest

from dflash_mlx.engine.options import Sampling
from dflash_mlx.target.model import Target
from tests.families.models import (
    DRAFTERS,
    FAMILIES,
    build,
    config_of,
    family_drafting,
    family_target,
)
from tests.tiny import LongCopies, Script, repeating, run

PROMPT = [5, 17, 99, 3, 120, 44, 61, 8, 30, 2]
LENGTH, SHORTER = 20, 10
BLOCK = 6
ACCEPTS = (0, 5, 2, 1, 0, 4)
"""Drafts that are right, round by round: none, some and all of a block."""
SAMPLINGS = {"greedy": Sampling(), "seeded": Sampling(temperature=0.8, top_k=40)}


@cache
def plain(family: str, bits: int | None, sampling: str) -> list[int]:
    """What decoding one row at a time says."""
    target = family_target(family, bits)
    tokens, _, _ = run(target, PROMPT, LENGTH, sampling=SAMPLINGS[sampling])
    assert len(set(tokens)) > 2, "a target that repeats itself proves nothing"
    return tokens


@pytest.mark.parametrize(
    ("bits", "sampling"), [(None, "greedy"), (None, "seeded"), (4, "greedy"), (8, "seeded")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_scripted_drafts_change_no_token(family: str, bits: int | None, sampling: str) -> None:
    """Windows are shorter than the run, so they slide."""
    truth = plain(family, bits, sampling)
    script = Script(truth, len(PROMPT), ACCEPTS)

    tokens, steps, _ = run(
        family_target(family, bits),
        PROMPT,
        LENGTH,
        drafting=script,
        block_size=BLOCK,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == truth
    counts = [(step.accepted, step.drafted) for step in steps if step.drafted]
    assert counts[:6] == [(0, 5), (5, 5), (2, 5), (1, 5), (0, 5), (4, 5)]


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_real_drafter_changes_no_token(family: str, kind: str) -> None:
    """Of every packaging, and sampling every other one."""
    sampling = ("greedy", "seeded")[(FAMILIES.index(family) + list(DRAFTERS).index(kind)) % 2]
    target = family_target(family)

    tokens, steps, _ = run(
        target,
        PROMPT,
        SHORTER,
        drafting=family_drafting(target, kind=kind),
        block_size=BLOCK,
        sampling=SAMPLINGS[sampling],
    )

    assert tokens == plain(family, None, sampling)[:SHORTER]
    assert any(step.drafted == BLOCK - 1 for step in steps)


@pytest.mark.parametrize("scripted", [True, False])
def test_80_tokens_past_a_window_of_24(scripted: bool) -> None:
    """Report 1: rejected drafts must not stay in a window that is full."""
    model = build("gemma3_text", sliding_window=24)
    target = Target(model, config_of("gemma3_text"), (0, 2))
    truth, _, _ = run(target, PROMPT, 80)
    assert len(set(truth)) > 20
    drafting = Script(truth, len(PROMPT), ACCEPTS) if scripted else family_drafting(target)

    tokens, _, _ = run(target, PROMPT, 80, drafting=drafting, block_size=BLOCK)

    assert tokens == truth


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_longer_than_a_drafters_block_change_no_token(family: str) -> None:
    """And longer than a window: 15 drafts without a drafter, of which all, some and none hold."""
    target = family_target(family)
    accepted = set[int]()
    for words in ((7,), (7, 8)):
        sampling, expected = repeating(target, PROMPT, words, 36)

        tokens, steps, _ = run(
            target, PROMPT, 36, blocks=LongCopies(drafts=False), sampling=sampling
        )

        assert tokens == expected
        accepted |= {step.accepted for step in steps if step.copied and step.drafted == 15}
    assert {0, 15} < accepted
