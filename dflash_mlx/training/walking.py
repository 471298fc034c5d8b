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
from ..drafter.dflash2 import SecondDrafter
from ..engine.drafting import draft_head
from ..engine.events import acceptance_by_position, acceptance_length
from ..target.model import Target
from .blocks import make_batch
from .conversations import Conversation, Ids
from .features import compute_taps
from .forward import hidden_states
from .second import Candidates, scores

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


@dataclass
class Walker:
    """Walks answers with a drafter of `target`, which has its taps, greedily.

    `rows` are those of the target's pass over a block (None: the drafter's own). Drafts come from
    the drafter's draft vocabulary if it has one.
    """

    target: Target
    drafter: Drafter
    stop_tokens: frozenset[int]
    rows: int | None = None

    def __post_init__(self) -> None:
        self._head = draft_head(self.target, self.drafter)
        self._whole = self.rows or self.drafter.config.verified_rows

    def walk_all(self, conversations: Iterable[Conversation]) -> Acceptance:
        """The rounds of every answer of the conversations. See `walk`."""
        total = Acceptance()
        for item in conversations:
            total.add(self.walk(item))
        return total

    def walk(self, item: Conversation, limit: int | None = None) -> Acceptance:
        """The rounds in which the engine would serve a conversation's answers.

        Towards the tokens that an answer may have, rounds draft no further than that. An answer
        that ends in a stop token was given `limit` of them (None: no limit); any other was cut at
        its length.
        """
        whole, total, taps = self._whole, Acceptance(), None
        for begin, end in item.answers:
            if end - begin < 2:
                continue  # prefill's token is all there is
            if taps is None:
                tokens = make_batch([item], [0], [np.zeros(0, np.int32)], whole).tokens
                taps = compute_taps(self.target, tokens)
            stopped = int(item.ids[end - 1]) in self.stop_tokens
            last = end if not stopped else begin + limit if limit else None
            anchors = np.arange(begin, end - 1, dtype=np.int32)
            right = self._matches(item, taps, anchors, whole).tolist()
            total.matches += right
            short: dict[int, int] = {}
            for rows in range(2, whole):
                if last and begin <= (anchor := last - 1 - rows) < end - 1:
                    only = np.array([anchor], np.int32)
                    short[rows] = int(self._matches(item, taps, only, rows)[0])
            self._rounds(total, begin, end, last, right, short)
        return total

    def _rounds(
        self,
        total: Acceptance,
        begin: int,
        end: int,
        last: int | None,
        right: list[int],
        short: dict[int, int],
    ) -> None:
        """Walk one answer: `right[i]` drafts are right behind anchor `begin + i` in a whole block.

        `short[rows]` are right in the shorter block before `last`, where a limit ends the answer.
        """
        anchor = begin
        while anchor < end - 1:
            rows = min(self._whole, last - 1 - anchor) if last else self._whole
            matched = right[anchor - begin] if rows == self._whole else short.get(rows, 0)
            if rows > 1:  # a last row alone is decoded plainly, which is no round
                total.accepted.append(matched)
                total.drafted.append(rows - 1)
            anchor += matched + 1

    def _matches(self, item: Conversation, taps: mx.array, anchors: Ids, rows: int) -> Ids:
        """How many drafts behind each anchor are right, before the first wrong or the answer's end.

        The head sees row k only of the blocks whose drafts are right up to there: few, mostly.
        """
        found, config = [], self.drafter.config
        first = config.first_row
        for start in range(0, len(anchors), _ANCHORS):
            part = anchors[start : start + _ANCHORS]
            batch = make_batch([item], [0], [part], rows)
            blocks = batch.blocks(config.mask_token_id)[..., : rows - 1 + first]
            embeddings = self.target.embed(mx.array(blocks)) * config.embedding_scale
            hidden = hidden_states(self.drafter, taps, embeddings, mx.array(batch.anchors))[0]
            matched = np.zeros(len(part), np.int32)
            alive = np.arange(len(part))
            for k in range(rows - 1):
                alive = alive[batch.valid[0, alive, k]]
                if not len(alive):
                    break
                before = batch.tokens[0, part[alive]] if k == 0 else batch.labels[0, alive, k - 1]
                drafts = self._drafts(hidden[mx.array(alive), k + first], before)
                alive = alive[drafts == batch.labels[0, alive, k]]
                matched[alive] += 1
            found.append(matched)
        return np.concatenate(found)

    def _drafts(self, hidden: mx.array, previous: Ids) -> Ids:
        """The likeliest token of each hidden row [N, D], behind the tokens `previous` [N]."""
        head = self._head.logits if self._head else self.target.head
        logits = self.drafter.logits(hidden, head).astype(mx.float32)
        if isinstance(self.drafter, SecondDrafter):
            selector = self.drafter.candidate_selector
            logits = self._head.spread(logits) if self._head else logits
            ids = mx.argpartition(-logits, kth=selector.top_k - 1, axis=-1)[:, : selector.top_k]
            own = mx.take_along_axis(logits, ids, axis=-1)
            given = scores(selector, hidden, mx.array(previous), Candidates(ids, own, own))
            best = mx.argmax(given, axis=-1, keepdims=True)
            return np.array(mx.take_along_axis(ids, best, axis=-1)[:, 0])
        best = mx.argmax(logits, axis=-1)
        return np.array(best if self._head is None else self._head.ids[best])
