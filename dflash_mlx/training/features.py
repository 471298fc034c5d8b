"""The target's features of whole conversations: what the drafter's context is made of.

Online they cost a pass of the target for every batch; cached, a pass once and disk space: float16,
T taps of D values a token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ..dtypes import dtype_name
from ..errors import DFlashError
from ..hub.store import check_space
from ..target.model import Target
from ..whole_file import write_whole
from .blocks import Batch
from .conversations import Conversation, Ids, digest

_CHUNK = 128
"""Tokens of a sequence in one pass of the target."""

ComputeTaps = Callable[[Target, Ids], mx.array]
"""`(target, tokens [B, S]) -> taps [B, S, T*D]`, as `compute_taps` does."""

Table = np.memmap[Any, np.dtype[np.float16]]
"""Features [tokens, T*D] on disk."""


class Features(Protocol):
    """Where a batch's features come from."""

    def __call__(self, batch: Batch) -> mx.array:
        """Taps [B, S, T*D] of a batch, evaluated; rows behind a conversation's end are anything."""


class OnlineFeatures:
    """A pass of the target for each batch: the very taps that the engine gives its drafter."""

    def __init__(self, target: Target):
        self._target = target

    def __call__(self, batch: Batch) -> mx.array:
        """See `Features`."""
        return compute_taps(self._target, batch.tokens)


def compute_taps(target: Target, tokens: Ids) -> mx.array:
    """Taps [B, S, T*D] of token ids [B, S]; the layers above the last tap are never computed.

    In chunks, as prefill is: a row attends to those before it alone, and in a whole pass half of
    the scores would be computed for nothing.
    """
    cache, parts = target.make_cache(), []
    needed = cache[: max(target.tap_ids) + 1] if len(cache) == target.num_layers else cache
    for start in range(0, tokens.shape[1], _CHUNK):
        _, taps = target.forward(mx.array(tokens[:, start : start + _CHUNK]), cache)
        assert taps is not None
        mx.eval(taps, [entry.state for entry in needed])
        parts.append(taps)
    return mx.concatenate(parts, axis=1)


class CachedFeatures:
    """Features on disk: `features.f16`, all tokens of all conversations one after another.

    `features.json` beside it says what they are of and how far they are done, so that an
    interrupted build goes on and features of other data, or of another target, are not mistaken.
    """

    def __init__(
        self,
        folder: Path,
        conversations: Sequence[Conversation],
        target: Target,
        compute: ComputeTaps = compute_taps,
    ):
        self._compute_taps = compute
        self._data = folder / "features.f16"
        self._note = folder / "features.json"
        self._conversations = conversations
        self._target = target
        self._width = len(target.tap_ids) * target.hidden_size
        self._starts = np.cumsum([0, *(len(item) for item in conversations)])
        self._mapped: Table | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return int(self._starts[-1]) * self._width * 2

    @property
    def _replaced(self) -> int:
        """Bytes on disk that older features take and leave to these."""
        return self._data.stat().st_blocks * 512 if self._data.exists() else 0

    def build(self, identity: str, batch_tokens: int) -> Generator[tuple[int, int]]:
        """Compute what is not there yet, yielding (tokens done, tokens in all).

        `identity` names the target's weights. Raises DFlashError where the disk is too small, or a
        feature is too large for float16.
        """
        subject: dict[str, object] = {
            "target": identity,
            "taps": list(self._target.tap_ids),
            "dtype": dtype_name(self._target.dtype),
            "conversations": digest(self._conversations),
        }
        done = self._done(subject)
        total = len(self._conversations)
        if done == 0:
            self._note.unlink(missing_ok=True)  # it vouches for what is about to be overwritten
            check_space(self._data.parent, self.nbytes - self._replaced)
        shape = (int(self._starts[-1]), self._width)
        data = np.memmap(self._data, np.float16, "r+" if done else "w+", shape=shape)
        for rows in self._groups(done, batch_tokens):
            self._compute(data, rows)
            data.flush()
            done = rows[-1] + 1
            write_whole(self._note, json.dumps({**subject, "done": done}))
            yield int(self._starts[done]), int(self._starts[-1])
        assert done == total
        self._mapped = np.memmap(self._data, np.float16, "r", shape=shape)

    def __call__(self, batch: Batch) -> mx.array:
        """See `Features`."""
        assert self._mapped is not None, "build() comes first"
        taps = np.zeros((*batch.tokens.shape, self._width), np.float16)
        for i, row in enumerate(batch.rows):
            length = len(self._conversations[row])
            taps[i, :length] = self._mapped[self._starts[row] : self._starts[row + 1]]
        return mx.array(taps)

    def _done(self, subject: dict[str, object]) -> int:
        """How many conversations are done, if what is there is of this subject."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            size = self._data.stat().st_size
        except (OSError, ValueError):
            return 0
        same = all(note.get(name) == value for name, value in subject.items())
        return int(note["done"]) if same and size == self.nbytes else 0

    def _groups(self, done: int, batch_tokens: int) -> Iterator[list[int]]:
        """The conversations from `done` on, in runs that fit the budget when padded."""
        group: list[int] = []
        for row in range(done, len(self._conversations)):
            longest = max(len(self._conversations[i]) for i in [*group, row])
            if group and longest * (len(group) + 1) > batch_tokens:
                yield group
                group = []
            group.append(row)
        if group:
            yield group

    def _compute(self, data: Table, rows: list[int]) -> None:
        longest = max(len(self._conversations[row]) for row in rows)
        tokens = np.zeros((len(rows), longest), np.int32)
        for i, row in enumerate(rows):
            tokens[i, : len(self._conversations[row])] = self._conversations[row].ids
        taps = np.array(self._compute_taps(self._target, tokens).astype(mx.float16))
        for i, row in enumerate(rows):
            own = taps[i, : len(self._conversations[row])]
            if not np.isfinite(own).all():
                raise DFlashError(
                    "The target's features are too large for float16: use --features online."
                )
            data[self._starts[row] : self._starts[row + 1]] = own
