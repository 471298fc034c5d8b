"""What a conversation has in memory: the tokens so far and the two caches that stand for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from ..target.model import Target
from ..target.rollback import cached_length, rewind
from .drafting import Drafting

Progress = Callable[[int, int], None]
"""Called with (tokens prefilled, tokens to prefill) after every chunk."""

_CHUNK_SECONDS = 0.5
_LARGEST_CHUNK = 512


class Context:
    """The tokens of a conversation, a target cache and, when drafting, a drafter's context.

    Between calls both caches hold exactly `tokens`. An interrupt may leave more rows in a cache
    than `tokens` tells of, never fewer: `tokens` grows last, and `reuse` forgets the surplus.
    """

    def __init__(self, target: Target, drafting: Drafting | None, chunk: int = 64) -> None:
        self.target = target
        self.drafting = drafting
        self.cache = target.make_cache()
        self.tokens: list[int] = []
        self._chunk = chunk

    def reuse(self, prompt: Sequence[int], draft: bool) -> int:
        """Roll back to the longest common prefix with `prompt`; returns its length.

        At least the last token of the prompt is left to forward, since its logits are wanted.
        """
        limit = min(len(prompt) - 1, len(self.tokens), cached_length(self.cache))
        if draft and self.drafting is not None:
            limit = min(limit, self.drafting.length)
        common = 0
        while common < limit and self.tokens[common] == prompt[common]:
            common += 1
        if self.drafting is not None:
            self.drafting.rewind(min(common, self.drafting.length))
            common = min(common, self.drafting.length) if draft else common
        del self.tokens[common:]
        rewind(self.cache, common)
        return common

    def prefill(self, tokens: Sequence[int], draft: bool, progress: Progress | None = None) -> None:
        """Append `tokens` in chunks, evaluating caches and taps only: no logits are computed.

        Every chunk's taps reach the drafter. A chunk aims at half a second, from what the last
        one took, so that Ctrl-C is answered soon and progress moves.
        """
        done = 0
        while done < len(tokens):
            chunk = tokens[done : done + self._chunk]
            begin = time.perf_counter()
            _, taps = self.target.forward(mx.array([chunk]), self.cache)
            arrays = [entry.state for entry in self.cache]
            if draft and self.drafting is not None and taps is not None:
                self.drafting.extend(taps)
                arrays.append(self.drafting.arrays)
            mx.eval(arrays)
            mx.clear_cache()
            self.tokens.extend(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, len(tokens))
            self._adapt(len(chunk), time.perf_counter() - begin)

    def _adapt(self, rows: int, seconds: float) -> None:
        """Double or halve the chunk towards `_CHUNK_SECONDS`."""
        expected = seconds * self._chunk / rows
        if expected < _CHUNK_SECONDS / 2:
            self._chunk = min(self._chunk * 2, _LARGEST_CHUNK)
        elif expected > _CHUNK_SECONDS * 2:
            self._chunk = max(self._chunk // 2, 1)
