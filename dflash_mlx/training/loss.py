"""The loss: cross-entropy of each row's label, weighted by what a right draft there is worth.

A draft counts only if all before it are right, so early rows matter more. Two weightings:

* **decay** (DFlash, arXiv 2602.06036): w_k = exp(-(k-1) / gamma);
* **D-PACE** (arXiv 2605.18810), the default: with q_k = exp(-CE_k), detached, smoothed to
  q'_k = (1 - alpha) q_k + alpha, and P_m = q'_1 ... q'_m, the chance that m drafts are accepted,
  w_k = P_k + P_{k+1} + ...: how much the expected number of accepted drafts hangs on row k.

The loss is the weighted mean sum(w CE) / sum(w) over a whole step, so that it reads as nats a
token, whichever weighting. Rows that do not count have weight 0, and P ends with the answer: where
only one token is left, w_1 is one term (SpecForge lets the sum run on over rows that do not count,
and divides by the batch size).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import mlx.core as mx
import numpy as np

from .exponential import Exponential, plain
from .second import Candidates

Weighting = Callable[[mx.array, mx.array], mx.array]
"""`(cross-entropy [N, L-1], counts [N, L-1] bool) -> weights [N, L-1]`, all detached."""

Head = Callable[[mx.array], mx.array]
"""Hidden rows [..., D] -> logits [..., V]."""

DPACE_ALPHA = 0.5


def decay_gamma(block_size: int) -> float:
    """The paper's gamma: 4, 5 and 7 for blocks of 8, 10 and 16; between them, lines."""
    return float(np.interp(block_size, (2, 8, 10, 16), (1, 4, 5, 7)))


def decay(gamma: float) -> Weighting:
    """Weights that fall by a fixed factor from row to row."""

    def weigh(entropy: mx.array, counts: mx.array) -> mx.array:
        rows = mx.arange(entropy.shape[-1], dtype=mx.float32)
        return mx.exp(-rows / gamma) * counts

    return weigh


def dpace(alpha: float = DPACE_ALPHA) -> Weighting:
    """Weights by the chance that the drafts up to a row are accepted, summed from it on."""

    def weigh(entropy: mx.array, counts: mx.array) -> mx.array:
        chance = mx.where(counts, (1 - alpha) * mx.exp(-entropy) + alpha, 1.0)
        reach = mx.cumprod(chance, axis=-1) * counts
        return mx.cumsum(reach, axis=-1, reverse=True) * counts

    return weigh


@dataclass
class Losses:
    """Sums over blocks, from which means over a step are made.

    loss: sum(w CE); weight: sum(w); blocks: with at least one row that counts; accepted: how
    many of their drafts a greedy target would accept (each block alone: see `anchor_accept`);
    selector: sum(w CE) of a DFlash 2's selector.
    """

    loss: float = 0.0
    weight: float = 0.0
    blocks: int = 0
    accepted: int = 0
    selector: float = 0.0

    def add(self, other: Losses) -> None:
        """Add the sums of other blocks."""
        self.loss += other.loss
        self.weight += other.weight
        self.blocks += other.blocks
        self.accepted += other.accepted
        self.selector += other.selector

    @property
    def mean(self) -> float:
        """The loss: sum(w CE) / sum(w), in nats; 0 where nothing counts."""
        return self.loss / self.weight if self.weight else 0.0

    @property
    def anchor_accept(self) -> float:
        """Mean accepted drafts + 1 over these anchors: more than the engine's acceptance length."""
        return self.accepted / self.blocks + 1 if self.blocks else 1.0


class HeadLosses(NamedTuple):
    """Sums over blocks; the gradient of sum(w CE) by hidden rows [N, L-1, D]; likeliest columns."""

    sums: Losses
    gradient: mx.array
    candidates: Candidates


def head_losses(
    head: Head,
    hidden: mx.array,
    labels: mx.array,
    counts: mx.array,
    weigh: Weighting,
    chunk_rows: int,
    exponential: Exponential = plain,
    candidates: int = 0,
) -> HeadLosses:
    """The losses of blocks, and the gradient of sum(w CE) by their hidden rows.

    hidden [N, L-1, D]: rows that predict. labels [N, L-1]: token ids, or -1 for one that the head
    does not know (it cannot be drafted: P falls to its least, and the row itself is skipped).
    counts [N, L-1] bool. `candidates` likeliest columns of each row are told too, if
    any are wanted. Logits exist for about `chunk_rows` rows at a time; they are evaluated
    here, so that no more of them is ever held.
    """
    blocks = max(chunk_rows // labels.shape[1], 1)
    sums, gradients, found = Losses(), [], []
    for start in range(0, hidden.shape[0], blocks):
        part = slice(start, start + blocks)
        chunk = _chunk(
            head, hidden[part], labels[part], counts[part], weigh, exponential, candidates
        )
        sums.add(chunk.sums)
        gradients.append(chunk.gradient)
        found.append(chunk.candidates)
    joined = (mx.concatenate(list(parts)) for parts in zip(*found, strict=True))
    return HeadLosses(sums, mx.concatenate(gradients), Candidates(*joined))


def _chunk(
    head: Head,
    hidden: mx.array,
    labels: mx.array,
    counts: mx.array,
    weigh: Weighting,
    exponential: Exponential,
    candidates: int,
) -> HeadLosses:
    """One chunk: forward through the head and, with a hand-written softmax gradient, back."""
    outputs = head(hidden)
    logits = outputs.astype(mx.float32)
    known = (labels >= 0)[..., None]
    places = mx.maximum(labels, 0)[..., None]
    best = logits.max(axis=-1, keepdims=True)
    powers = exponential(logits, best)
    total = powers.sum(axis=-1, keepdims=True)
    score = mx.take_along_axis(logits, places, axis=-1)
    entropy = mx.where(known, mx.log(total) + best - score, math.inf)[..., 0]
    weights = weigh(entropy, counts) * known[..., 0]
    # d CE / d logits = softmax - onehot; the softmax's total and the weight divide and multiply
    # whole rows, so they are applied behind the head, where rows are short.
    slope = mx.put_along_axis(powers, places, mx.exp(score - best) - total, axis=-1)
    _, (gradient,) = mx.vjp(head, [hidden], [slope.astype(outputs.dtype)])
    gradient = gradient.astype(mx.float32) * (weights[..., None] / total)
    right = (score >= best)[..., 0] & known[..., 0] & counts
    accepted = mx.cumprod(right.astype(mx.int32), axis=-1).sum()
    loss = mx.where(weights > 0, entropy, 0) * weights
    sums = mx.stack(
        [loss.sum(), weights.sum(), counts.any(axis=-1).sum(), accepted.astype(mx.float32)]
    )
    likeliest = mx.zeros((*labels.shape, 0), mx.uint32)
    if candidates:
        likeliest = mx.argpartition(-logits, kth=candidates - 1, axis=-1)[..., :candidates]
    told = Candidates(likeliest, mx.take_along_axis(logits, likeliest, axis=-1), weights)
    mx.eval(sums, gradient, told)
    loss_sum, weight_sum, block_sum, accepted_sum = cast("list[float]", sums.tolist())
    losses = Losses(loss_sum, weight_sum, int(block_sum), int(accepted_sum))
    return HeadLosses(losses, gradient, told)
