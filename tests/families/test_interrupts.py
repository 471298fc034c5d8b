"""Ctrl-C anywhere in a turn, on windows and recurrences: the next turn is that of a cold run."""

from __future__ import annotations

from functools import cache

import pytest

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.options import Sampling
from tests.engine.test_interrupts import Interrupt
from tests.families.models import WINDOW, family_drafting, family_target
from tests.target.caches import contents, fresh
from tests.tiny import Script, run, same_bits

FIRST = [(17 * i * i + 5 * i + 1) % 120 for i in range(WINDOW + 3)]
SECOND = [*FIRST, 3, 9, 27, 81]
SEEDED = Sampling(temperature=0.7)
LENGTH = 7
PLACES = 9


def conversation(family: str, truth: list[int]) -> Context:
    """A context after its first turn, whose caches grow in small steps."""
    target = family_target(family)
    script = Script(truth, len(SECOND), (1, 3, 0), family_drafting(target))
    context = Context(target, script, chunk=4)
    for entry in context.cache:
        entry.step = 8
    context.prefill(FIRST, draft=True)
    return context


def answer(family: str, context: Context) -> list[int]:
    """The second turn."""
    if isinstance(context.drafting, Script):
        context.drafting.rounds = 0
    target = family_target(family)
    return run(target, SECOND, LENGTH, block_size=4, sampling=SEEDED, context=context)[0]


@cache
def cold(family: str) -> tuple[list[int], int]:
    """What a cold run says in the second turn, and how many lines the turn executes."""
    said, _, _ = run(family_target(family), SECOND, LENGTH, sampling=SEEDED)
    context = conversation(family, said)
    with Interrupt(0) as counted:
        assert answer(family, context) == said
    return said, counted.lines


@pytest.mark.parametrize("place", range(PLACES))
@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_5", "nemotron_h"])
def test_the_next_turn_is_that_of_a_cold_run(family: str, place: int) -> None:
    truth, lines = cold(family)
    context = conversation(family, truth)

    with pytest.raises(KeyboardInterrupt), Interrupt(1 + lines * place // PLACES):
        answer(family, context)

    assert answer(family, context) == truth
    if family != "nemotron_h":  # whose prefill in chunks sums in another order
        assert same_bits(contents(context.cache), fresh(context.target, context.tokens))
