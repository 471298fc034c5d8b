"""What a conversation has in memory: the tokens so far and the two caches that stand for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..target.model import Target
from ..target.rollback import reaches, restore, rewind, rewinds_freely, save
from .copies import Copies
from .drafting import Drafting

Progress = Callable[[int, int], None]
"""Called with (tokens prefilled, tokens to prefill) after every chunk."""

_CHUNK_SECONDS = 0.5
_SMALLEST_CHUNK, _LARGEST_CHUNK = 16, 512
"""A pass over fewer rows takes hardly less time, so a prompt would take many times as long."""
_TEMPLATE_TOKENS = 32
"""How far before a prompt's end it may differ from what the next turn makes of it: a template may
open a reply in other words than those in which it repeats it."""
_KEPT = 4
"""How many snapshots a conversation keeps: those of its last two prompts."""


@dataclass(frozen=True)
class Snapshot:
    """What it takes to come back to the first `length` tokens of a conversation."""

    length: int
    target: list[object]
    drafting: object


class Context:
    """The tokens of a conversation, a target cache and, when drafting, a drafter's context.

    `copies` indexes the tokens, as of the last generation that copied.

    Between calls both caches hold exactly `tokens`. An interrupt may leave them in disagreement
    with `tokens`, which grows last: `reuse` goes back to where all agree. Caches that cannot go
    back far (windows, recurrent states) do so by snapshots, taken at the end of every prompt and
    somewhat before it.
    """

    def __init__(
        self,
        target: Target,
        drafting: Drafting | None,
        chunk: int = 64,
        largest_chunk: int = _LARGEST_CHUNK,
    ) -> None:
        self.target = target
        self.drafting = drafting
        self.cache = target.make_cache()
        self.copies = Copies()
        self.tokens: list[int] = []
        self._chunk = chunk
        self._largest_chunk = largest_chunk
        self._snapshots: list[Snapshot] = []

    def reuse(self, prompt: Sequence[int], draft: bool) -> int:
        """Go back as little as need be to a common prefix with `prompt`; returns its length.

        At least the last token of the prompt is left to forward, since its logits are wanted.
        """
        drafting = self.drafting if draft else None
        limit = min(len(prompt) - 1, len(self.tokens))
        common = 0
        while common < limit and self.tokens[common] == prompt[common]:
            common += 1
        if drafting is not None:
            common = min(common, drafting.length)
        self._snapshots = [each for each in self._snapshots if each.length <= common]
        del self.tokens[common:]
        length = self._go_back(common, drafting)
        if self.drafting is not None and drafting is None:
            self.drafting.rewind(min(length, self.drafting.length))
        del self.tokens[length:]
        return length

    def _go_back(self, common: int, drafting: Drafting | None) -> int:
        """Bring the caches back to `common` tokens, or to a snapshot, or to none; says which."""
        drafter_reaches = drafting is None or drafting.reaches(common)
        if common and drafter_reaches and reaches(self.cache, common):
            rewind(self.cache, common)
            if drafting is not None:
                drafting.rewind(common)
            return common
        while self._snapshots:
            last = self._snapshots[-1]
            if drafting is None or last.drafting is not None:
                restore(self.cache, last.target)
                if self.drafting is not None and last.drafting is not None:
                    self.drafting.restore(last.drafting)
                return last.length
            self._snapshots.pop()
        self.cache = self.target.make_cache()
        if drafting is not None:
            drafting.rewind(0)
        return 0

    def prefill(self, tokens: Sequence[int], draft: bool, progress: Progress | None = None) -> None:
        """Append `tokens` in chunks, evaluating caches and taps only: no logits are computed.

        Every chunk's taps reach the drafter. A chunk aims at half a second, from what the last
        one took, so that Ctrl-C is answered soon and progress moves.
        """
        drafting = self.drafting if draft else None
        stops = [len(tokens)]
        if not self._rewinds_freely(drafting):
            stops.insert(0, max(0, len(tokens) - _TEMPLATE_TOKENS))
        done = 0
        for stop in stops:
            while done < stop:
                chunk = tokens[done : min(done + self._chunk, stop)]
                self._append(chunk, drafting)
                done += len(chunk)
                if progress is not None:
                    progress(done, len(tokens))
            if len(stops) > 1 and self.tokens:
                self._take_snapshot(drafting)

    def _append(self, chunk: Sequence[int], drafting: Drafting | None) -> None:
        """Forward one chunk, and choose the size of the next."""
        begin = time.perf_counter()
        with self.target.round(self.cache, len(chunk)) as turn:
            _, taps = self.target.forward(mx.array([chunk]), self.cache)
            arrays = [entry.state for entry in self.cache]
            if drafting is not None and taps is not None:
                drafting.extend(taps)
                arrays.append(drafting.arrays)
            mx.eval(arrays)
            turn.commit(len(chunk))
        mx.clear_cache()
        self.tokens.extend(chunk)
        self._adapt(len(chunk), time.perf_counter() - begin)

    def _rewinds_freely(self, drafting: Drafting | None) -> bool:
        return rewinds_freely(self.cache) and (drafting is None or drafting.rewinds_freely)

    def _take_snapshot(self, drafting: Drafting | None) -> None:
        saved = save(self.cache)
        if saved is not None:
            of_drafter = None if drafting is None else drafting.save()
            snapshot = Snapshot(len(self.tokens), saved, of_drafter)
            self._snapshots = [*self._snapshots[1 - _KEPT :], snapshot]

    def _adapt(self, rows: int, seconds: float) -> None:
        """Double or halve the chunk towards `_CHUNK_SECONDS`."""
        expected = seconds * self._chunk / rows
        if expected < _CHUNK_SECONDS / 2:
            self._chunk = min(self._chunk * 2, self._largest_chunk)
        elif expected > _CHUNK_SECONDS * 2:
            self._chunk = max(self._chunk // 2, _SMALLEST_CHUNK)
