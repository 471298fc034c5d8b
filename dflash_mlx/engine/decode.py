"""The decode loop: draft a block, verify it, accept a prefix, commit.

The page that explains DFlash. Plain decoding is the same loop with blocks of one row. The target's
choice at a position is one pure function (see `sampling`), so the tokens are the same for any
drafts and any block size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from ..kernels.accept import accept
from ..kernels.metal import Metal
from .blocks import Blocks, Plan
from .context import Context
from .copies import Copies
from .drafting import NOT_FINITE, Drafting
from .sampling import Chooser

Cut = Callable[[list[int]], tuple[int, bool]]
"""Told the tokens of a round: how many of them to emit (at least one), and whether to stop."""


@dataclass(frozen=True)
class Step:
    """What one pass of the target emitted, and how many of its tokens were drafts.

    `copied`: the drafts were copied from the context. `reads`: how often the host waited for the
    device. `model_seconds`: building, queueing and awaiting both models' passes and the choice.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    copied: bool = False
    reads: int = 1
    model_seconds: float = 0.0


def decode(
    context: Context, anchor: int, blocks: Blocks, limit: int, chooser: Chooser, cut: Cut
) -> Iterator[Step]:
    """Emit up to `limit` tokens after `anchor`, the last token, which no cache holds yet.

    The first pass has one row and no drafts: its token is prefill's. Each round after it has the
    rows that `blocks` plans, or fewer where fewer tokens are still wanted. Between steps the caches
    hold all tokens but the last, so a closed generator or an exception leaves the context usable.
    """
    drafting = context.drafting if blocks.drafts else None
    history = [*context.tokens, anchor]
    copies = context.copies if blocks.copies else None
    if copies is not None:
        copies.follow(history)
    plan, drafts = Plan(), mx.zeros([0], mx.int32)
    emitted, done = 0, False
    while not done:
        begin = time.perf_counter()
        block = mx.concatenate([mx.array(history[-1:], mx.int32), drafts])
        with context.target.round(context.cache, block.size) as turn:
            logits, taps = turn.forward(block[None])
            tokens, reads = verify(logits[0], history, block, chooser, context.target.metal)
            seconds = time.perf_counter() - begin
            matched = len(tokens) - 1
            kept, done = cut(tokens)
            turn.commit(kept)
        del tokens[kept:]
        if drafting is not None and taps is not None:
            drafting.extend(taps[:, :kept])
        blocks.observe(plan, matched)
        drafted, accepted, copied = drafts.size, min(matched, kept), plan.match > 0
        context.tokens.extend([history[-1], *tokens[:-1]])
        history.extend(tokens)
        if copies is not None:
            copies.extend(tokens)
        emitted += kept
        done = done or emitted >= limit
        wanted = 1 if done else limit - emitted
        plan = blocks.plan(len(history) - 1, wanted, copies.match if copies else 0)
        begin = time.perf_counter()
        drafts = _propose(plan, drafting, copies, history, chooser)
        if drafting is not None:
            # Queued here, the next draft is computed while the caller prints this step.
            mx.async_eval(drafts, drafting.arrays)
        seconds += time.perf_counter() - begin
        yield Step(tokens, drafted, accepted, copied, reads, seconds)


def _propose(
    plan: Plan,
    drafting: Drafting | None,
    copies: Copies | None,
    history: Sequence[int],
    chooser: Chooser,
) -> mx.array:
    """The drafts of a planned round, int32, one fewer than its rows."""
    if plan.rows > 1 and plan.match and copies is not None:
        return mx.array(copies.drafts(plan.rows - 1), mx.int32)
    if plan.rows > 1 and drafting is not None:
        return drafting.propose(history, plan.rows, chooser)
    return mx.zeros([0], mx.int32)


def verify(
    logits: mx.array,
    history: Sequence[int],
    block: mx.array,
    chooser: Chooser,
    metal: Metal | None = None,
) -> tuple[list[int], int]:
    """The tokens that a verified block yields: the drafts that are right, and one more choice.

    And how often the host read from the device: once, or twice where the likeliest tokens did not
    tell; with processors, which run on the host, once for the drafts and once a token.

    logits: [L, V] of `block` [L], the last token of `history` and L - 1 drafts. A draft is right
    iff it equals the target's choice at its position. Raises FloatingPointError where the drafter's
    values were not finite.
    """
    drafts = block[1:]
    if chooser.processors:
        tokens = chooser.walk(logits, history, _finite(as_ints(drafts)))
        return tokens, 1 + len(tokens)
    choices, enough = chooser.likely(logits, history, drafts)
    result = accept(choices, block, metal=metal)
    accepted, *numbers = as_ints(mx.concatenate([result, enough, drafts[:1]]))
    _finite(numbers[2 * block.size :])  # the first draft stands for all
    if all(numbers[block.size :][: accepted + 1]):
        return numbers[: accepted + 1], 1
    result = accept(chooser.choose(logits, history, drafts), block, metal=metal)
    accepted, *numbers = as_ints(result)
    return numbers[: accepted + 1], 2


def _finite(drafts: list[int]) -> list[int]:
    if NOT_FINITE in drafts:
        raise FloatingPointError("the drafter's values are not finite")
    return drafts


def as_ints(tokens: mx.array) -> list[int]:
    """Read a one-dimensional integer array from the device."""
    return cast("list[int]", tokens.tolist())
