"""Acceptance as the engine lives it, without the engine: walk answers that are known.

From an answer's first token, each round drafts behind the anchor, and the next anchor is the token
after the accepted ones. The mean over all anchors says more than that (`anchor_accept`): places
where drafting goes well are walked over in long steps, so they are seldom anchors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..drafter import Drafter
from ..engine.events import acceptance_by_position, acceptance_length
from ..target.model import Target
from .blocks import make_batch
from .conversations import Conversation, Ids
from .features import compute_taps
from .forward import hidden_states

_ANCHORS = 64
"""Blocks of a pass."""


@dataclass
class Acceptance:
    """Rounds of the engine: how many drafts each took and how many of them were right.

    `matches` are the right drafts behind every anchor there is, walked over or not.
    """

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    matches: list[int] = field(default_factory=list)

    @property
    def length(self) -> float:
        """The acceptance length, pooled over all rounds; 1 where there was none."""
        return acceptance_length(self.accepted) or 1.0

    @property
    def by_position(self) -> list[float]:
        """Share of the rounds drafting at least k tokens that accepted k, for k = 1, 2, ..."""
        return acceptance_by_position(self.accepted, self.drafted)

    @property
    def anchor_accept(self) -> float:
        """Mean right drafts + 1 over all anchors alike: no acceptance length, but more."""
        return acceptance_length(self.matches) or 1.0

    def add(self, other: Acceptance) -> None:
        """Add the rounds of another."""
        self.accepted += other.accepted
        self.drafted += other.drafted
        self.matches += other.matches


def walk_all(
    target: Target,
    drafter: Drafter,
    conversations: Iterable[Conversation],
    stop_tokens: frozenset[int],
    block_size: int | None = None,
) -> Acceptance:
    """Walk every answer of the conversations, greedily. See `walk`."""
    total = Acceptance()
    for item in conversations:
        total.add(walk(target, drafter, item, stop_tokens, block_size))
    return total


def walk(
    target: Target,
    drafter: Drafter,
    item: Conversation,
    stop_tokens: frozenset[int],
    block_size: int | None = None,
) -> Acceptance:
    """The rounds in which the engine would serve a conversation's answers.

    An answer that ends in a stop token had no limit; any other was cut at its length, and its last
    rounds draft no further than that. `target` must have the drafter's taps.
    """
    whole = block_size or drafter.config.block_size
    total, taps = Acceptance(), None
    for begin, end in item.answers:
        if end - begin < 2:
            continue  # prefill's token is all there is
        if taps is None:
            tokens = make_batch([item], [0], [np.zeros(0, np.int32)], whole).tokens
            taps = compute_taps(target, tokens)
        limited = int(item.ids[end - 1]) not in stop_tokens
        anchors = np.arange(begin, end - 1, dtype=np.int32)
        right = _matches(target, drafter, item, taps, anchors, whole)
        total.matches += right.tolist()
        short: dict[int, int] = {}
        for rows in range(2, whole) if limited else ():
            if (anchor := end - 1 - rows) >= begin:
                only = np.array([anchor], np.int32)
                short[rows] = int(_matches(target, drafter, item, taps, only, rows)[0])
        _rounds(total, begin, end, whole, limited, right.tolist(), short)
    return total


def _rounds(
    total: Acceptance,
    begin: int,
    end: int,
    whole: int,
    limited: bool,
    right: list[int],
    short: dict[int, int],
) -> None:
    """Walk one answer: `right[i]` drafts are right behind anchor `begin + i` in a whole block.

    `short[rows]` are right in the shorter block of a limited answer's end.
    """
    anchor = begin
    while (left := end - 1 - anchor) > 0:
        rows = min(whole, left) if limited else whole
        matched = right[anchor - begin] if rows == whole else short.get(rows, 0)
        emitted = min(matched + 1, left)
        total.accepted.append(min(matched, emitted))
        total.drafted.append(rows - 1)
        anchor += emitted


def _matches(
    target: Target, drafter: Drafter, item: Conversation, taps: mx.array, anchors: Ids, rows: int
) -> Ids:
    """How many drafts behind each anchor are right, up to the first wrong one or the answer's end.

    The head sees row k only of the blocks whose drafts are right up to there: few, mostly.
    """
    found = []
    for start in range(0, len(anchors), _ANCHORS):
        part = anchors[start : start + _ANCHORS]
        batch = make_batch([item], [0], [part], rows)
        embeddings = target.embed(mx.array(batch.blocks(drafter.config.mask_token_id)))
        embeddings = embeddings * drafter.config.embedding_scale
        hidden = hidden_states(drafter, taps, embeddings, mx.array(batch.anchors))[0]
        matched = np.zeros(len(part), np.int32)
        alive = np.arange(len(part))
        for k in range(rows - 1):
            alive = alive[batch.valid[0, alive, k]]
            if not len(alive):
                break
            logits = drafter.logits(hidden[mx.array(alive), k + 1], target.head)
            drafts = np.array(mx.argmax(logits.astype(mx.float32), axis=-1))
            alive = alive[drafts == batch.labels[0, alive, k]]
            matched[alive] += 1
        found.append(matched)
    return np.concatenate(found)
