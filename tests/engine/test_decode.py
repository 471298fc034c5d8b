"""The decode loop: the caches after each round, limits and stops inside a block, processors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dflash_mlx.engine.blocks import FixedBlocks, Plan
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import Step, decode
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from tests.tiny import (
    KEY,
    Script,
    cached_rows,
    drafter_rows,
    random_drafting,
    run,
    same_bits,
    take_all,
    tiny_target,
)

PROMPT = [5, 17, 99, 3, 120, 44]
TARGET = tiny_target("qwen3")
SAMPLED = Sampling(temperature=0.9, top_k=40)


def rounds(
    context: Context, limit: int, block_size: int, sampling: Sampling | None = None
) -> Iterator[Step]:
    """Prefill `PROMPT` and decode."""
    context.prefill(PROMPT[:-1], draft=block_size > 1)
    chooser = Chooser(sampling or Sampling(), KEY)
    return decode(context, PROMPT[-1], FixedBlocks(block_size), limit, chooser, take_all)


@pytest.mark.parametrize("window", [None, 12], ids=["full drafter", "sliding drafter"])
def test_after_each_round_both_caches_equal_a_fresh_prefill(window: int | None) -> None:
    """Bit for bit, after every count of accepted drafts that a block of 8 can have."""
    limit = 1 + sum(range(1, 9))
    truth, _, _ = run(TARGET, PROMPT, limit, sampling=SAMPLED)
    drafting = random_drafting(TARGET, window)
    context = Context(TARGET, Script(truth, len(PROMPT), range(8), keeper=drafting))

    emitted, accepted = [], []
    for step in rounds(context, limit, 8, SAMPLED):
        emitted += step.tokens
        accepted.append(step.accepted)
        fresh_drafting = random_drafting(TARGET, window)
        fresh = Context(TARGET, fresh_drafting)
        fresh.prefill([*PROMPT, *emitted][:-1], draft=True)

        assert context.tokens == fresh.tokens
        assert same_bits(cached_rows(context), cached_rows(fresh))
        assert drafting.length == len(PROMPT) + len(emitted) - 1
        assert same_bits(drafter_rows(drafting), drafter_rows(fresh_drafting))

    assert emitted == truth
    assert accepted == [0, *range(8)]


def test_plain_rounds_between_drafts_keep_the_drafter_up() -> None:
    """Its context after every round is that of a prefill, however many rows rounds had."""

    class Seldom(FixedBlocks):
        def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
            return Plan(8 if length % 5 == 0 else 1)

    drafting = random_drafting(TARGET)
    context = Context(TARGET, drafting)
    context.prefill(PROMPT[:-1], draft=True)
    emitted, drafted = [], []
    for step in decode(context, PROMPT[-1], Seldom(8), 30, Chooser(SAMPLED, KEY), take_all):
        emitted += step.tokens
        drafted.append(step.drafted)
        fresh_drafting = random_drafting(TARGET)
        Context(TARGET, fresh_drafting).prefill([*PROMPT, *emitted][:-1], draft=True)

        assert drafting.length == len(PROMPT) + len(emitted) - 1
        if drafted.count(7) % 2:  # now and then: looking makes the drafter catch up
            assert same_bits(drafter_rows(drafting), drafter_rows(fresh_drafting))

    assert drafted.count(0) > 10
    assert drafted.count(7) > 2
