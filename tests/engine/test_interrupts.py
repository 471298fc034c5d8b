"""Ctrl-C, a closed generator or an exception, anywhere: the next turn is as if nothing had been.

Reports 17 and 105. A KeyboardInterrupt comes between two lines of Python, so the sweep below raises
one before every so many lines that a turn executes, in our own code and in mlx-lm's caches.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from types import FrameType
from typing import Any

import mlx.nn as nn
import mlx_lm.models.cache
import pytest

import dflash_mlx
from dflash_mlx.engine.blocks import FixedBlocks, Plan
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.pair import Pair
from tests.tiny import (
    MIXED,
    Script,
    cached_rows,
    drafter_rows,
    random_drafting,
    run,
    same_bits,
    tiny_target,
)
from tests.tiny_folders import tiny_pair

PLACES = (str(Path(dflash_mlx.__file__).parent), str(mlx_lm.models.cache.__file__))
FIRST = [40, 41, 42, 43, 44, 45]
SECOND = [*FIRST, 50, 51, 52, 53, 54, 55, 56]
OPTIONS = Options(sampling=Sampling(temperature=0.8, top_k=40), seed=3, max_tokens=12)


class Interrupt:
    """Raises KeyboardInterrupt before the line number `at` that is executed in `PLACES`.

    Not before lines that only open or close a block: Python never interrupts there, but a tracer
    does, and cheats a with-statement of its exit.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter_function(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PLACES) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "try:")):
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._line


def conversation(pair: Pair, truth: list[int]) -> Context:
    """A context after its first turn, whose caches grow in small steps."""
    assert pair.drafter is not None
    keeper = BlockDrafting(pair.target, pair.drafter)
    context = Context(pair.target, Script(truth, len(SECOND), MIXED, keeper), chunk=4)
    for entry in context.cache:
        entry.step = 8
    context.prefill(FIRST, draft=True)
    return context


def answer(pair: Pair, context: Context) -> list[int]:
    """The second turn."""
    return [
        token for event in stream(pair, context, SECOND, OPTIONS, turn=1) for token in event.tokens
    ]


@pytest.fixture(scope="module")
def cold() -> tuple[list[int], int]:
    """What a cold run says in the second turn, and how many lines the turn executes."""
    pair = tiny_pair()
    said = answer(pair, Context(pair.target, None))
    context = conversation(pair, said)
    with Interrupt(0) as counted:
        assert answer(pair, context) == said
    return said, counted.lines


@pytest.mark.parametrize("share", range(25))
def test_the_next_turn_after_an_interrupt_is_that_of_a_cold_run(
    share: int, cold: tuple[list[int], int]
) -> None:
    truth, lines = cold
    pair = tiny_pair()
    context = conversation(pair, truth)

    with pytest.raises(KeyboardInterrupt), Interrupt(1 + lines * share // 25):
        answer(pair, context)

    assert answer(pair, context) == truth
    assert holds_what_a_prefill_would(pair, context)


def holds_what_a_prefill_would(pair: Pair, context: Context) -> bool:
    """Whether both caches are those of a fresh prefill of the context's tokens."""
    assert pair.drafter is not None
    fresh_drafting = BlockDrafting(pair.target, pair.drafter)
    fresh = Context(pair.target, fresh_drafting)
    fresh.prefill(context.tokens, draft=True)
    assert isinstance(context.drafting, Script)
    keeper = context.drafting.keeper
    assert isinstance(keeper, BlockDrafting)
    return same_bits(cached_rows(context), cached_rows(fresh)) and same_bits(
        drafter_rows(keeper), drafter_rows(fresh_drafting)
    )


class Breaking(nn.Module):  # so that it may stand in a module's place
    """Does as `function` does, but for one call, which ends by Ctrl-C."""

    def __init__(self, function: Callable[..., Any], call: int) -> None:
        super().__init__()
        self.function = function
        self.calls_left = call

    def __call__(self, *arguments: Any) -> Any:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return self.function(*arguments)


@contextmanager
def breaking(owner: Any, name: str, call: int) -> Iterator[None]:
    """Have an attribute of `owner` break for a while."""
    whole = getattr(owner, name)
    setattr(owner, name, Breaking(whole, call))
    try:
        yield
    finally:
        setattr(owner, name, whole)


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("place", ["between two layers", "before the drafter hears", "drafting"])
def test_the_worst_places_for_an_interrupt(
    place: str, call: int, cold: tuple[list[int], int]
) -> None:
    """One layer's cache has grown and the next has not; the target's is ahead of all others."""
    truth, _ = cold
    pair = tiny_pair()
    context = conversation(pair, truth)
    owner, name = {
        "between two layers": (pair.target.model.layers[1], "input_layernorm"),
        "before the drafter hears": (context.drafting, "extend"),
        "drafting": (context.drafting, "propose"),
    }[place]

    with pytest.raises(KeyboardInterrupt), breaking(owner, name, call):
        answer(pair, context)

    assert answer(pair, context) == truth
    assert holds_what_a_prefill_would(pair, context)


@pytest.mark.parametrize("events", [1, 2, 3, 7, 11])
def test_a_generator_may_be_closed_after_any_event(
    events: int, cold: tuple[list[int], int]
) -> None:
    truth, _ = cold
    pair = tiny_pair()
    context = conversation(pair, truth)
    reply = stream(pair, context, SECOND, OPTIONS, turn=1)
    heard = [token for event in islice(reply, events) for token in event.tokens]

    assert isinstance(reply, Generator)
    reply.close()

    assert heard == truth[: len(heard)]
    assert context.tokens == [*SECOND, *heard][:-1]
    assert holds_what_a_prefill_would(pair, context)
    assert answer(pair, context) == truth


class Turns(FixedBlocks):
    """Plain rounds, in which taps wait for the drafter, its blocks and copies, in turn."""

    copies = True

    def __init__(self) -> None:
        super().__init__(8)
        self._turns = cycle((1, 1, 4, 1, 8, 2))

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """The next of them."""
        rows = min(next(self._turns), wanted)
        return Plan(rows, match if rows == 4 else 0)


@pytest.mark.parametrize("share", range(12))
def test_an_interrupt_between_changing_rounds_leaves_nothing_wrong(share: int) -> None:
    """Taps that wait neither get lost nor come twice."""
    target = tiny_target("qwen3")
    sampling = Sampling(temperature=9.0, logit_bias=dict.fromkeys((7, 8, 9), 900.0))
    prompt = [*FIRST, 7, 8, 9, 7, 7, 8, 9, 7]

    def reply(context: Context) -> list[int]:
        return run(target, prompt, 16, blocks=Turns(), sampling=sampling, context=context)[0]

    truth, _, _ = run(target, prompt, 16, sampling=sampling)
    with Interrupt(0) as counted:
        assert reply(Context(target, random_drafting(target))) == truth
    drafting = random_drafting(target)
    context = Context(target, drafting)

    with pytest.raises(KeyboardInterrupt), Interrupt(1 + counted.lines * share // 12):
        reply(context)

    assert reply(context) == truth
    fresh_drafting = random_drafting(target)
    fresh = Context(target, fresh_drafting)
    fresh.prefill(context.tokens, draft=True)
    assert same_bits(cached_rows(context), cached_rows(fresh))
    assert same_bits(drafter_rows(drafting), drafter_rows(fresh_drafting))
