"""DFlash 2 in training: its parts begin as if they were not there, and its selector learns.

Filters begin as identities and the selector at scores of 0, so a DFlash 2 made of a DFlash drafter
drafts the same at first. The selector's loss is the cross-entropy of the label among the row's
candidates, with the true token before it as predecessor: what it sees when it is asked, since a
row matters only if all drafts before it are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx

from ..drafter.dflash2 import CandidateSelector
from ..errors import UsageError

ARCHITECTURE = "DFlash2DraftModel"
_KERNEL, _GROUP, _TOP_K = 2, 16, 8
"""Rows of a filter, channels that share one, and candidates of a row: those of the published."""


class Candidates(NamedTuple):
    """The likeliest tokens of rows: ids [..., K], their logits (float32), and the rows' weights."""

    ids: mx.array
    logits: mx.array
    weights: mx.array


def second_config(config: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A DFlash drafter's `config.json` with what DFlash 2 adds."""
    own = {
        **config["dflash_config"],
        "conv_kernel_size": _KERNEL,
        "conv_group_size": _GROUP,
        "selector_rank": rank,
        "selector_top_k": _TOP_K,
    }
    return {**config, "architectures": [ARCHITECTURE], "dflash_config": own}


def check_candidates(config: Mapping[str, Any], frequent_tokens: int) -> None:
    """Raise UsageError where the smaller head has fewer tokens than a row has candidates."""
    wanted = config["dflash_config"].get("selector_top_k", 0)
    if 0 < frequent_tokens < wanted:
        raise UsageError(
            f"--frequent-tokens must be {wanted} or more for this DFlash 2, whose selector chooses"
            f" among {wanted} tokens; it is {frequent_tokens}."
        )


def second_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that DFlash 2 adds, by their names."""
    own, hidden = config["dflash_config"], config["hidden_size"]
    rows, rank = own["conv_kernel_size"], own["selector_rank"]
    filters = 2 * rows * hidden // own["conv_group_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (config["vocab_size"], rank),
        "candidate_selector.successor_codebook": (config["vocab_size"], rank),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        for part in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{part}.base_kernel"] = (2, rows, hidden)
            shapes[f"layers.{layer}.{part}.kernel_projection.weight"] = (filters, hidden)
    return shapes


def is_second(name: str) -> bool:
    """Whether a tensor is one that DFlash 2 adds."""
    return "_conv." in name or name.startswith("candidate_selector.")


def first_weight(name: str, random: mx.array) -> mx.array:
    """The first weight of a matrix: `random`, but what DFlash 2 adds must change nothing yet."""
    if name.endswith("base_kernel"):
        weight = mx.zeros(random.shape)
        weight[:, 0] = 1.0
        return weight
    if name.endswith(("kernel_projection.weight", "successor_codebook")):
        return mx.zeros(random.shape)
    return random


def scores(
    selector: CandidateSelector, hidden: mx.array, previous: mx.array, candidates: Candidates
) -> mx.array:
    """Of candidates [..., K] of rows `hidden` [..., D] behind the tokens `previous` [...]."""
    wanted = selector.successor_codebook[candidates.ids]
    wanted = wanted * selector.hidden_projection(hidden)[..., None, :]
    follows = (selector.predecessor_codebook[previous][..., None, :] * wanted).sum(axis=-1)
    return candidates.logits + follows.astype(mx.float32)


def selector_loss(
    selector: CandidateSelector,
    hidden: mx.array,
    previous: mx.array,
    labels: mx.array,
    candidates: Candidates,
) -> mx.array:
    """sum(w CE) of labels [...] among their candidates; rows that lack theirs do not count."""
    given = scores(selector, hidden, previous, candidates)
    right = candidates.ids == labels[..., None]
    entropy = mx.logsumexp(given, axis=-1) - mx.where(right, given, 0).sum(axis=-1)
    return (mx.where(right.any(axis=-1), entropy, 0) * candidates.weights).sum()
