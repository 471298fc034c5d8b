"""Which tokens answers are made of: the draft vocabulary, counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DFlashError, UsageError
from ..training.conversations import read_conversations

Counts = NDArray[np.int64]


def count_answers(files: Sequence[Path], vocabulary: int) -> Counts:
    """How often the assistant wrote each token, [vocabulary], in files of conversations.

    The files are those of the trainer (`training/conversations.py`). Raises DFlashError.
    """
    counts = np.zeros(vocabulary, np.int64)
    for file in files:
        for conversation in read_conversations(file, vocabulary):
            written = conversation.ids[conversation.assistant]
            counts += np.bincount(written, minlength=vocabulary)
    if not counts.any():
        raise DFlashError(f"{', '.join(map(str, files))} holds no answers to count.")
    return counts


def most_frequent(counts: Counts, number: int) -> list[int]:
    """The `number` most frequent tokens, ascending by id.

    Among equals, and where fewer are known, small ids come first: BPE gives those to the commonest
    words.
    """
    if not 0 < number <= len(counts):
        raise UsageError(
            f"A draft vocabulary has 1 to {len(counts)} tokens here; {number} were asked for."
        )
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:number].tolist())


def coverage(counts: Counts, ids: Sequence[int]) -> float:
    """The share of the counted tokens that are in `ids`."""
    return float(counts[list(ids)].sum() / counts.sum())
