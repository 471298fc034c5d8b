"""Blocks to train on: anchors, what they are to predict, and batches of them.

An **anchor** is a token that is decided; the block behind it predicts the next `block_size - 1`.
Anchor a is valid iff the assistant wrote tokens a and a+1: so the first is the token that prefill
yields. The **label** of row k is token a+k. It counts as long as the assistant's answer goes on:
a block never reaches over an answer's end into the next answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .conversations import Conversation, Flags, Ids

LENGTH_STEP = 32
"""Lengths of batches are multiples of it, so that there are few different shapes."""

ANCHOR_STEP = 8


@dataclass(frozen=True)
class Batch:
    """Sequences and the blocks drawn from them; all arrays are NumPy's.

    rows: which conversations these are [B]. tokens [B, S], padded at the end. anchors [B, A]: the
    places of the anchors. labels, valid [B, A, L-1]: the token that row k is to predict and
    whether it counts, for k = 1 .. L-1; where an anchor is only padding, nothing does.
    """

    rows: list[int]
    tokens: Ids
    anchors: Ids
    labels: Ids
    valid: Flags

    def blocks(self, mask_token: int) -> Ids:
        """What enters the drafter [B, A, L]: the anchor's token, then masks."""
        shape = (*self.anchors.shape, self.labels.shape[2] + 1)
        blocks = np.full(shape, mask_token, np.int32)
        blocks[..., 0] = np.take_along_axis(self.tokens, self.anchors, axis=1)
        return blocks


def valid_anchors(assistant: Flags) -> Ids:
    """The places a where the assistant wrote a and a+1."""
    return np.flatnonzero(assistant[:-1] & assistant[1:]).astype(np.int32)


def draw_anchors(assistant: Flags, count: int, rng: np.random.Generator) -> Ids:
    """Up to `count` different valid anchors, uniformly, in ascending order."""
    places = valid_anchors(assistant)
    if len(places) > count:
        places = np.sort(rng.choice(places, count, replace=False))
    return places


def labels_of(item: Conversation, anchors: Ids, block_size: int) -> tuple[Ids, Flags]:
    """Labels and whether they count, both [A, L-1], for the rows after each anchor."""
    places = anchors[:, None] + np.arange(1, block_size)
    inside = np.minimum(places, len(item) - 1)
    valid = (places < len(item)) & item.assistant[inside]
    return item.ids[inside], np.logical_and.accumulate(valid, axis=1)


def make_batch(
    conversations: Sequence[Conversation],
    rows: Sequence[int],
    anchors: Sequence[Ids],
    block_size: int,
) -> Batch:
    """Pad and stack the conversations `rows` with the anchors of each."""
    lengths = [len(conversations[row]) for row in rows]
    length, count = _padded(lengths, [len(places) for places in anchors])
    batch = Batch(
        list(rows),
        np.zeros((len(rows), length), np.int32),
        np.zeros((len(rows), count), np.int32),
        np.zeros((len(rows), count, block_size - 1), np.int32),
        np.zeros((len(rows), count, block_size - 1), np.bool_),
    )
    for i, (row, places) in enumerate(zip(rows, anchors, strict=True)):
        item = conversations[row]
        batch.tokens[i, : len(item)] = item.ids
        batch.anchors[i, : len(places)] = places
        labels, valid = labels_of(item, places, block_size)
        batch.labels[i, : len(places)] = labels
        batch.valid[i, : len(places)] = valid
    return batch


@dataclass(frozen=True)
class Schedule:
    """The order in which conversations are seen, and their anchors: a pure function of the seed.

    Batch number n is the same whenever it is asked for, so a run that is resumed needs only n.
    A batch holds conversations of similar lengths, `batch_tokens` tokens in all, padding included
    (one conversation at least). Every epoch draws the order and all anchors anew.
    """

    conversations: Sequence[Conversation]
    batch_tokens: int
    anchors: int
    block_size: int
    seed: int

    @property
    def batches_per_epoch(self) -> int:
        """The same in every epoch, since only lengths decide it."""
        return len(self._groups(np.arange(len(self.conversations))))

    def shapes(self) -> set[tuple[int, int, int]]:
        """Sequences, length and anchors of the first epoch's batches, without making them."""
        lengths = [len(item) for item in self.conversations]
        drawn = [min(len(valid_anchors(c.assistant)), self.anchors) for c in self.conversations]
        return {
            (len(rows), *_padded([lengths[row] for row in rows], [drawn[row] for row in rows]))
            for rows in self._epoch(0)
        }

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch number `start` and all after it, without end."""
        epoch, skip = divmod(start, self.batches_per_epoch)
        while True:
            for rows in self._epoch(epoch)[skip:]:
                yield self._batch(epoch, rows)
            epoch, skip = epoch + 1, 0

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng([self.seed, epoch])
        groups = self._groups(rng.permutation(len(self.conversations)))
        return [groups[i] for i in rng.permutation(len(groups))]

    def _groups(self, order: NDArray[np.integer]) -> list[list[int]]:
        steps = [-(-len(self.conversations[i]) // LENGTH_STEP) for i in order]
        groups: list[list[int]] = []
        longest = 0
        for place in np.argsort(np.array(steps), kind="stable"):
            longest = steps[place]  # ascending, so the newest is the longest
            room = self.batch_tokens // (longest * LENGTH_STEP)
            if not groups or len(groups[-1]) + 1 > room:
                groups.append([])
            groups[-1].append(int(order[place]))
        return groups

    def _batch(self, epoch: int, rows: list[int]) -> Batch:
        drawn = []
        for row in rows:
            rng = np.random.default_rng([self.seed, epoch, row])
            drawn.append(draw_anchors(self.conversations[row].assistant, self.anchors, rng))
        return make_batch(self.conversations, rows, drawn, self.block_size)


def _padded(lengths: Sequence[int], anchors: Sequence[int]) -> tuple[int, int]:
    """The length and the count of anchors that all rows of a batch are padded to."""
    return _rounded(max(lengths), LENGTH_STEP), _rounded(max(anchors), ANCHOR_STEP)


def _rounded(number: int, step: int) -> int:
    return max(-(-number // step), 1) * step
