"""The target's head as a drafter is trained with it: over all tokens, or over frequent ones.

Most of a small drafter's training is its head: with 49,152 tokens it is ten times the work of a
layer. A head over the tokens that the target writes most sees almost every label at a quarter of
the cost; the last steps of a run use the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from ..convert.counted import most_frequent
from ..drafter import Drafter
from ..target.model import Target
from .conversations import Conversation, Ids


def frequent_tokens(conversations: Sequence[Conversation], count: int, vocabulary: int) -> Ids:
    """The `count` tokens that the assistant writes most, in ascending order of their ids."""
    counts = np.zeros(vocabulary, np.int64)
    for item in conversations:
        counts += np.bincount(item.ids[item.assistant], minlength=vocabulary)
    return np.array(most_frequent(counts, count), np.int32)


class TrainingHead:
    """Hidden rows [..., D] to logits: of the whole vocabulary, or of the tokens `frequent` [N]."""

    def __init__(self, target: Target, drafter: Drafter, frequent: Ids | None = None):
        self._drafter = drafter
        self._head: Callable[[mx.array], mx.array] = target.head
        self._places: Ids | None = None
        self._tokens: mx.array | None = None
        if frequent is not None:
            self._head = target.head_rows(frequent.tolist()).logits
            self._tokens = mx.array(frequent)
            self._places = np.full(target.vocab_rows, -1, np.int32)
            self._places[frequent] = np.arange(len(frequent))

    def __call__(self, hidden: mx.array) -> mx.array:
        return self._drafter.logits(hidden, self._head)

    def places(self, labels: Ids) -> mx.array:
        """Token ids as columns of the logits; -1 for a token that this head does not know."""
        return mx.array(labels if self._places is None else self._places[labels])

    def tokens(self, places: mx.array) -> mx.array:
        """Columns of the logits as token ids."""
        return places if self._tokens is None else self._tokens[places]
