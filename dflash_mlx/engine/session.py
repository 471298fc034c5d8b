"""A conversation with a pair: messages in, a stream of events out, caches kept between turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .context import Progress
from .events import Event
from .generation import stream
from .options import Options

if TYPE_CHECKING:
    from ..pair import Pair

Message = dict[str, str]


class Session:
    """A conversation. Each turn forwards only what is new, through both caches.

    A reply that is cut short (Ctrl-C, a closed generator, an exception) stays in the conversation
    as far as it came; if nothing of it came, its question is withdrawn too.
    """

    def __init__(self, pair: Pair, options: Options, system: str | None = None) -> None:
        self.pair = pair
        self.options = options
        self.context = pair.context()
        self.messages: list[Message] = []
        self.turn = 0
        self._reply: Iterator[Event] | None = None
        if system:
            self.messages.append({"role": "system", "content": system})

    def send(
        self, text: str, options: Options | None = None, progress: Progress | None = None
    ) -> Iterator[Event]:
        """Ask `text`; the reply as a stream of events. Raises DFlashError where it cannot fit."""
        self._finish_reply()
        question = {"role": "user", "content": text}
        prompt = self.pair.encode_messages([*self.messages, question])
        events = stream(
            self.pair,
            self.context,
            prompt,
            options or self.options,
            turn=self.turn,
            progress=progress,
        )
        self.turn += 1
        self._reply = self._record(question, events)
        return self._reply

    def _record(self, question: Message, events: Iterator[Event]) -> Iterator[Event]:
        """Pass the events on, and in the end, however it comes, keep what was said."""
        pieces: list[str] = []
        try:
            for event in events:
                pieces.append(event.text)
                yield event
        finally:
            answer = {"role": "assistant", "content": "".join(pieces)}
            if pieces:
                self.messages += [question, answer]

    def _finish_reply(self) -> None:
        """Close a reply that was left half read, so that it is recorded before the next turn."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.close()  # type: ignore[attr-defined]
