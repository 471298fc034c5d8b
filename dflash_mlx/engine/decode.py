"""The decode loop: draft a block, verify it, accept a prefix, commit.

The page that explains DFlash. Plain decoding is the same loop with blocks of one row. The target's
choice at a position is one pure function (see `sampling`), so the tokens are the same for any
drafts and any block size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from ..kernels.accept import accept
from ..kernels.metal import Metal
from .context import Context
from .drafting import NOT_FINITE
from .sampling import Chooser

Cut = Callable[[list[int]], tuple[int, bool]]
"""Told the tokens of a round: how many of them to emit (at least one), and whether to stop."""


@dataclass(frozen=True)
class Step:
    """What one pass of the target emitted, and how many of its tokens were drafts."""

    tokens: list[int]
    drafted: int
    accepted: int


def decode(
    context: Context, anchor: int, block_size: int, limit: int, chooser: Chooser, cut: Cut
) -> Iterator[Step]:
    """Emit up to `limit` tokens after `anchor`, the last token, which no cache holds yet.

    The first pass has one row and no drafts: its token is prefill's. Each round after it drafts
    `block_size - 1` tokens, or fewer where fewer are still wanted. Between steps the caches hold
    all tokens but the last, so a closed generator or an exception leaves the context usable.
    """
    drafting = context.drafting if block_size > 1 else None
    drafts = mx.zeros([0], mx.int32)
    emitted, done = 0, False
    while not done:
        block = mx.concatenate([mx.array([anchor], mx.int32), drafts])
        with context.target.round(context.cache, block.size) as turn:
            logits, taps = turn.forward(block[None])
            history = [*context.tokens, anchor]
            tokens = verify(logits[0], history, block, chooser, context.target.metal)
            matched = len(tokens) - 1
            kept, done = cut(tokens)
            turn.commit(kept)
        del tokens[kept:]
        if drafting is not None and taps is not None:
            drafting.extend(taps[:, :kept])
        step = Step(tokens, drafts.size, min(matched, kept))
        context.tokens.extend([anchor, *tokens[:-1]])
        anchor = tokens[-1]
        emitted += kept
        done = done or emitted >= limit
        if drafting is not None:
            # Queued here, the next draft is computed while the caller prints this step.
            rows = 1 if done else min(block_size, limit - emitted)
            drafts = drafting.propose([*context.tokens, anchor], rows, chooser)
            mx.async_eval(drafts, drafting.arrays)
        yield step


def verify(
    logits: mx.array,
    history: Sequence[int],
    block: mx.array,
    chooser: Chooser,
    metal: Metal | None = None,
) -> list[int]:
    """The tokens that a verified block yields: the drafts that are right, and one more choice.

    logits: [L, V] of `block` [L], the last token of `history` and L - 1 drafts. A draft is right
    iff it equals the target's choice at its position. Reads from the device once; with processors,
    which run on the host, once a token. Raises FloatingPointError where the drafter's values were
    not finite.
    """
    drafts = block[1:]
    if chooser.processors:
        return chooser.walk(logits, history, _finite(as_ints(drafts)))
    choices = chooser.choose(logits, history, drafts)
    accepted, *numbers = as_ints(mx.concatenate([accept(choices, block, metal=metal), drafts[:1]]))
    _finite(numbers[block.size :])  # the first draft stands for all
    return numbers[: accepted + 1]


def _finite(drafts: list[int]) -> list[int]:
    if NOT_FINITE in drafts:
        raise FloatingPointError("the drafter's values are not finite")
    return drafts


def as_ints(tokens: mx.array) -> list[int]:
    """Read a one-dimensional integer array from the device."""
    return cast("list[int]", tokens.tolist())
