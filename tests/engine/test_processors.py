"""Processors of the caller's own see every emitted token once, and never a rejected draft."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.options import Processor, Sampling
from tests.tiny import MIXED, ORACLE, ZERO, Script, random_drafting, run, tiny_target

PROMPT = [5, 17, 99, 3, 120, 44]
LENGTH = 14
TARGET = tiny_target("qwen3")
SAMPLED = Sampling(temperature=0.9, repetition_penalty=1.2)


class Recorder:
    """Forbids every third token of those it saw: what it allows depends on its whole history."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, tokens: Sequence[int], logits: mx.array) -> mx.array:
        self.calls.append(list(tokens))
        forbidden = mx.array(list(tokens[::3]))
        return mx.put_along_axis(logits, forbidden, mx.array(-mx.inf), axis=-1)


def decode(
    processor: Processor, accepts: Sequence[int] | None, truth: Sequence[int] = ()
) -> list[int]:
    """Plain, or with a scripted drafter."""
    script = None if accepts is None else Script(truth, len(PROMPT), accepts)
    tokens, steps, _ = run(
        TARGET,
        PROMPT,
        LENGTH,
        drafting=script,
        block_size=1 if script is None else 5,
        sampling=SAMPLED,
        processors=[processor],
    )
    assert script is None or any(step.drafted for step in steps)
    return tokens


@pytest.mark.parametrize("accepts", [ORACLE, MIXED, ZERO], ids=["oracle", "mixed", "zero"])
def test_a_processor_sees_exactly_what_was_emitted(accepts: Sequence[int]) -> None:
    """Report 15: one call a token, with the tokens before it, in order."""
    plain, drafted = Recorder(), Recorder()
    truth = decode(plain, None)

    assert decode(drafted, accepts, truth) == truth
    assert drafted.calls == plain.calls == [PROMPT + truth[:count] for count in range(LENGTH)]


def test_a_processor_that_changes_nothing_changes_no_token() -> None:
    def idle(tokens: Sequence[int], logits: mx.array) -> mx.array:
        assert logits.shape == (128,)
        assert logits.dtype == mx.float32
        return logits

    without, _, _ = run(TARGET, PROMPT, LENGTH, sampling=SAMPLED)

    assert decode(idle, None) == without
    assert decode(idle, MIXED, without) == without


def test_processors_are_called_in_their_order() -> None:
    order: list[str] = []

    def first(tokens: Sequence[int], logits: mx.array) -> mx.array:
        order.append("first")
        return mx.zeros_like(logits)

    def second(tokens: Sequence[int], logits: mx.array) -> mx.array:
        order.append("second")
        return logits + 5 * (mx.arange(128) == 42)

    tokens, _, _ = run(TARGET, PROMPT, 2, processors=[first, second])

    assert tokens == [42, 42]
    assert order == ["first", "second"] * 2


@pytest.mark.parametrize("call", [1, 4, 9])
def test_a_processor_that_raises_leaves_the_context_usable(call: int) -> None:
    truth = decode(Recorder(), None)
    context = Context(TARGET, Script(truth, len(PROMPT), MIXED, random_drafting(TARGET)))
    calls = 0

    def failing(tokens: Sequence[int], logits: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls == call:
            raise ZeroDivisionError
        return logits

    with pytest.raises(ZeroDivisionError):
        run(TARGET, PROMPT, LENGTH, block_size=5, context=context, processors=[failing])
    again, _, _ = run(
        TARGET,
        PROMPT,
        LENGTH,
        block_size=5,
        sampling=SAMPLED,
        context=context,
        processors=[Recorder()],
    )

    assert again == truth
