"""From tokens to what is shown: text, reasoning apart from the answer, and where to stop."""

from __future__ import annotations

from collections.abc import Iterable

from .stops import StopStrings
from .text import TextStream
from .thinking import ThinkingSplitter


class Output:
    """The text of one generation. `take` is the `cut` of the decode loop; `drain` what to print."""

    def __init__(
        self,
        stream: TextStream,
        stop_tokens: frozenset[int],
        stop_strings: Iterable[str],
        thinking: ThinkingSplitter,
    ) -> None:
        self._stream = stream
        self._stop_tokens = stop_tokens
        self._stops = StopStrings(stop_strings)
        self._splitter = thinking
        self._thinking: list[str] = []
        self._answer: list[str] = []
        self.stopped = False

    def take(self, tokens: list[int]) -> tuple[int, bool]:
        """How many of `tokens` to emit, a stop token among them, and whether that is the end.

        A stop token shows no text. Of a stop string, and of what follows it, nothing is shown.
        """
        for count, token in enumerate(tokens, start=1):
            if token in self._stop_tokens:
                self.stopped = True
            else:
                text, self.stopped = self._stops.push(self._stream.push(token))
                self._show(text)
            if self.stopped:
                return count, True
        return len(tokens), False

    def finish(self) -> None:
        """Release what was held back: an unfinished character, half a stop string or a tag."""
        text, _ = self._stops.push(self._stream.finish())
        self._show(text + self._stops.finish())
        thinking, answer = self._splitter.finish()
        self._thinking.append(thinking)
        self._answer.append(answer)

    def drain(self) -> tuple[str, str]:
        """The answer and the reasoning since the last call."""
        answer, thinking = "".join(self._answer), "".join(self._thinking)
        self._answer.clear()
        self._thinking.clear()
        return answer, thinking

    def _show(self, text: str) -> None:
        thinking, answer = self._splitter.push(text)
        self._thinking.append(thinking)
        self._answer.append(answer)
