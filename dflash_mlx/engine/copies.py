"""Drafts for nothing: where the last tokens occurred before, what followed them may follow again.

Text that is edited, quoted or listed repeats what the context holds. A dictionary of short runs of
tokens finds the last place where one stood, the longest run first; how far the match goes back is
then counted once, and grows by itself as long as the text goes on as it did there.
"""

from __future__ import annotations

from collections.abc import Sequence

from .blocks import LEAST_MATCH

_RUNS = (4, 3, LEAST_MATCH)
"""Tokens of the runs that are looked up: what follows a longer one follows again more often."""
_LONGEST = 64
"""Tokens of a match that are counted: more of them say nothing more."""


class Copies:
    """The tokens of a conversation, indexed. A token costs the same however long the context is."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[int, int] = {}  # hash of a run of tokens: where it ended last
        self._source = 0  # the token there followed the match
        self.match = 0
        """How many of the last tokens occurred before, in a row, up to 64; 0: fewer than 2."""

    def follow(self, tokens: Sequence[int]) -> None:
        """Stand for `tokens`, which are indexed anew if they do not go on from those so far.

        So text that was taken back, as often as that may be, fills no memory and hides no run.
        """
        if self._tokens != list(tokens[: len(self._tokens)]):
            self.match = 0
            self._tokens, self._ends = [], {}
        self.extend(tokens[len(self._tokens) :])

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        for token in tokens:
            self._append(token)

    def drafts(self, count: int) -> list[int]:
        """The `count` tokens that followed the match; they may reach into those they copy."""
        found: list[int] = []
        for place in range(self._source, self._source + count):
            behind = place - len(self._tokens)
            found.append(self._tokens[place] if behind < 0 else found[behind])
        return found

    def _append(self, token: int) -> None:
        goes_on = self.match > 0 and self._tokens[self._source] == token
        self.match = min(self.match + 1, _LONGEST) if goes_on else 0
        self._source += 1
        self._tokens.append(token)
        end = len(self._tokens)
        for run in (run for run in _RUNS if run <= end):
            key = hash(tuple(self._tokens[-run:]))
            before = self._ends.get(key)
            self._ends[key] = end
            if before is not None and run > self.match:
                length = self._matching(before, end)
                if length >= run:
                    self.match, self._source = length, before

    def _matching(self, before: int, end: int) -> int:
        """How many tokens up to `before` equal those up to `end`: a hash may err."""
        if before >= end:
            return 0
        length = 0
        while length < min(before, _LONGEST) and (
            self._tokens[before - 1 - length] == self._tokens[end - 1 - length]
        ):
            length += 1
        return length
