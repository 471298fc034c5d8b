"""The best tokens of each draft row: the LM head, noise and ranking, without `[rows, V]` logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from . import block_matmul
from .block_matmul import Weights
from .metal import Metal
from .race import Contest

MAX_COUNT = 64
SPAN = 1024
"""Tokens of one threadgroup: each gives its own best, which a second launch merges."""


class Ranked(NamedTuple):
    """Of each row: `ids` [R, count] int32 and `scores` [R, count] float32, best first and the lower
    id where scores are equal; `logsumexp` [R] float32 of the row's logits."""

    ids: mx.array
    scores: mx.array
    logsumexp: mx.array


class Noise(NamedTuple):
    """Gumbel noise at a temperature: the same for kernel and twin.

    `streams` [R, 2] uint32 is each row's Threefry key; `gumbel` gives the noise of token ids
    [R, N] in plain MLX. The kernel computes it in place, from the stream and the id.
    """

    streams: mx.array
    gumbel: Callable[[mx.array], mx.array]
    temperature: float = 1.0


@dataclass(frozen=True)
class Scoring:
    """What tokens score by a head's products: softcap(product * multiplier), their logits.

    With `noise` it is logits / temperature + noise. `tokens` `[N]` int32 names the tokens of a
    draft vocabulary; without it, row n of the head is token n.
    """

    tokens: mx.array | None = None
    multiplier: float = 1.0
    softcap: float | None = None
    noise: Noise | None = None


PLAIN = Scoring()


def draft_head(
    hidden: mx.array,
    weights: Weights,
    count: int,
    scoring: Scoring = PLAIN,
    metal: Metal | None = None,
) -> Ranked:
    """The `count` best tokens for each row of `hidden` `[R, K]` by head `weights` `[N, K]`.

    The kernel's logits are float32, the twin's are first rounded to the type of `hidden`, as a
    head's output is.
    """
    ranked = by_kernel(hidden, weights, count, scoring, metal) if metal else None
    return twin(hidden, weights, count, scoring) if ranked is None else ranked


def by_kernel(
    hidden: mx.array, weights: Weights, count: int, scoring: Scoring, metal: Metal
) -> Ranked | None:
    """`draft_head` by the kernel; None where it cannot take the call, or lost the race."""

    def kernel() -> Ranked:
        return _kernel(hidden, weights, count, scoring, metal)

    def scores_alone() -> list[mx.array]:
        """As a head does without a kernel: all logits, and the best of them."""
        logits = _logits(hidden, weights, scoring)
        if count == 1:
            return [logits.max(axis=-1, keepdims=True).astype(hidden.dtype)]
        return [-mx.sort(-mx.topk(logits, count, axis=-1)).astype(hidden.dtype)]

    obstacle, contest = unsupported(hidden, weights, count), None
    if obstacle is None and scoring.noise is None:
        contest = Contest(
            f"draft_head, best {count}, {block_matmul.case(hidden, weights)}",
            lambda: [kernel().scores.astype(hidden.dtype)],
            scores_alone,
        )
    return kernel() if metal.serves("draft_head", obstacle, contest) else None


def _kernel(
    hidden: mx.array, weights: Weights, count: int, scoring: Scoring, metal: Metal
) -> Ranked:
    rows, vocabulary = hidden.shape[0], weights.shape[0]
    tokens, noise = scoring.tokens, scoring.noise
    coldness = 1.0 if noise is None else 1.0 / noise.temperature
    factor, cap = scoring.multiplier, scoring.softcap or 0.0
    numbers = mx.array([factor, cap, coldness, 0.0], mx.float32)
    names = hidden if tokens is None else tokens
    streams = numbers if noise is None else noise.streams
    spans = -(-vocabulary // SPAN)
    pieces = metal.kernel(
        "draft_head",
        ["hidden", "weights", "scales", "biases", "tokens", "streams", "numbers"],
        ["best_scores", "best_ids", "masses"],
        *("fragments.h", "weights.h", "top.h", "noise.h"),
    )(
        inputs=[hidden, *block_matmul.operands(weights), names, streams, numbers],
        template=[
            ("T", hidden.dtype),
            *block_matmul.layout(weights),
            ("TILES", block_matmul.row_tiles(rows)),
            ("COUNT", count),
            ("SPAN", SPAN),
            ("MAPPED", tokens is not None),
            ("NOISE", noise is not None),
        ],
        grid=(256 * spans, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[(rows, spans, count), (rows, spans, count), (rows, spans, 2)],
        output_dtypes=[mx.float32, mx.uint32, mx.float32],
    )
    merge = metal.kernel(
        "draft_head_merge",
        ["best_scores", "best_ids", "masses"],
        ["ids", "scores", "logsumexp"],
        *("fragments.h", "top.h"),
    )
    return Ranked(
        *merge(
            inputs=pieces,
            template=[("COUNT", count)],
            grid=(32, rows, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(rows, count), (rows, count), (rows,)],
            output_dtypes=[mx.int32, mx.float32, mx.float32],
        )
    )


def unsupported(hidden: mx.array, weights: Weights, count: int) -> str | None:
    """Why the kernel cannot take this call, or None if it can."""
    if not 1 <= count <= min(MAX_COUNT, weights.shape[0]):
        return f"{count} candidates"
    return block_matmul.unsupported(hidden, weights)


def twin(hidden: mx.array, weights: Weights, count: int, scoring: Scoring = PLAIN) -> Ranked:
    """`draft_head` in plain MLX."""
    tokens, noise = scoring.tokens, scoring.noise
    logits = _logits(hidden, weights, scoring)
    names = mx.arange(weights.shape[0], dtype=mx.int32) if tokens is None else tokens
    names = mx.broadcast_to(names[None], logits.shape)
    scores = logits
    if noise is not None:
        scores = logits * (1.0 / noise.temperature) + noise.gumbel(names)
    places = mx.argsort(-scores, axis=-1)[:, :count]
    best = mx.take_along_axis(scores, places, axis=-1)
    ids = mx.take_along_axis(names, places, axis=-1)
    return Ranked(ids, best, mx.logsumexp(logits, axis=-1))


def _logits(hidden: mx.array, weights: Weights, scoring: Scoring) -> mx.array:
    logits = block_matmul.twin(hidden, weights).astype(mx.float32) * scoring.multiplier
    cap = scoring.softcap
    return logits if cap is None else mx.tanh(logits / cap) * cap
