"""Several conversations in one process: threads, two pairs, one model. Each is as alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.engine.blocks import FixedBlocks
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import Step, decode
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.target.model import Target
from tests.families.models import family_drafting, family_target
from tests.tiny import KEY, run, take_all

FAMILIES = ("llama", "gemma3_text", "qwen3_5")
SEEDED = Sampling(temperature=0.7)
LENGTH = 16


def prompt_of(number: int) -> list[int]:
    """A prompt of its own for every conversation."""
    return [(number * 31 + 7 * i) % 120 for i in range(11)]


@cache
def alone(family: str, number: int) -> list[int]:
    """What a conversation says by itself, plainly."""
    return run(family_target(family), prompt_of(number), LENGTH, sampling=SEEDED)[0]


def drafted(family: str, number: int) -> list[int]:
    """What it says with a drafter."""
    target = family_target(family)
    return run(
        target,
        prompt_of(number),
        LENGTH,
        drafting=family_drafting(target),
        block_size=5,
        sampling=SEEDED,
    )[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_thread_after_another_may_generate(family: str) -> None:
    """Report 104: nothing may be bound to the thread that loaded the model."""
    expected = [alone(family, number) for number in range(3)]
    for number in range(3):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(drafted, family, number).result() == expected[number]


def test_threads_may_share_models() -> None:
    """Report 106. Taps and replays look into layers that other threads run at the same time."""
    work = [(family, number) for number in range(3) for family in FAMILIES]
    expected = [alone(family, number) for family, number in work]

    with ThreadPoolExecutor(6) as threads:
        said = list(threads.map(lambda item: drafted(*item), work))

    assert said == expected


def steps_of(family: str, number: int, taps: Sequence[int] | None = None) -> Iterator[Step]:
    """A conversation with a drafter, step by step."""
    target = family_target(family)
    context = Context(target, family_drafting(target))
    context.prefill(prompt_of(number)[:-1], draft=True)
    chooser = Chooser(SEEDED, KEY)
    return decode(context, prompt_of(number)[-1], FixedBlocks(5), LENGTH, chooser, take_all)


@pytest.mark.parametrize("closed_first", [0, 1, 2])
def test_interleaved_conversations_are_as_alone(closed_first: int) -> None:
    """Reports 16 and 19: two on one model, one on another; one of them ends early."""
    kept = [("qwen3_5", 0), ("gemma3_text", 1), ("qwen3_5", 2)]
    running = [steps_of(*each) for each in kept]
    said: list[list[int]] = [[], [], []]
    for turn in range(LENGTH):
        for i, steps in enumerate(running):
            if i == closed_first and turn == 2:
                steps.close()  # type: ignore[attr-defined]
            for step in [next(steps, None)]:
                said[i] += step.tokens if step else []

    for i, (family, number) in enumerate(kept):
        expected = alone(family, number)
        assert said[i] == (expected[: len(said[i])] if i == closed_first else expected)
    assert 0 < len(said[closed_first]) < LENGTH


def test_two_drafters_with_other_taps_share_a_model() -> None:
    """Report 19: the second pair gets its own taps, and the first keeps its."""
    first = family_target("qwen3_5")
    second = Target(first.model, first.config, (1, 2))
    tokens = mx.array([prompt_of(0)])
    taps = [target.forward(tokens, target.make_cache())[1] for target in (first, second, first)]

    assert all(each is not None for each in taps)
    assert mx.array_equal(taps[0], taps[2]).item()  # type: ignore[arg-type]
    assert not mx.array_equal(taps[0], taps[1]).item()  # type: ignore[arg-type]


def test_no_class_of_mlx_lm_or_mlx_is_changed() -> None:
    before = class_contents()

    for family in FAMILIES:
        drafted(family, 0)
        layers = family_target(family).body.layers
        assert all(type(layer).__module__.startswith("mlx_lm.models.") for layer in layers)
        modules = [module for layer in layers for module in layer.modules()]
        assert not {type(module).__name__ for module in modules} & {"Noting", "Recalling"}
        assert all("<locals>" not in type(module).__qualname__ for module in modules)

    assert class_contents() == before


def class_contents() -> dict[str, dict[str, int]]:
    """The attributes of every class of mlx-lm's models and of mlx.nn, by identity."""
    modules: list[ModuleType] = [nn]
    modules += [module for name, module in sys.modules.items() if name.startswith("mlx_lm.models.")]
    return {
        f"{owner.__module__}.{owner.__qualname__}": {k: id(v) for k, v in vars(owner).items()}
        for module in modules
        for owner in vars(module).values()
        if isinstance(owner, type)
    }
