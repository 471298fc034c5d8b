"""A conversation with a pair: messages in, a stream of events out, caches kept between turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
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
        self._seen_text, self._seen_tokens = "", list[int]()
        if system:
            self.messages.append({"role": "system", "content": system})

    def send(
        self, text: str, options: Options | None = None, progress: Progress | None = None
    ) -> Iterator[Event]:
        """Ask `text`; the reply as a stream of events. Raises DFlashError where it cannot fit."""
        self._finish_reply()
        question = {"role": "user", "content": text}
        rendered = self.pair.render([*self.messages, question])
        prompt = self._encode(rendered)
        events = stream(
            self.pair,
            self.context,
            prompt,
            options or self.options,
            turn=self.turn,
            progress=progress,
        )
        self.turn += 1
        self._reply = self._record(question, rendered, prompt, events)
        return self._reply

    def _encode(self, rendered: str) -> list[int]:
        """Token ids of a rendered conversation, keeping those that were seen or said before.

        A reply encoded anew may give other tokens than the model wrote; the caches hold its own.
        """
        if self._seen_text and rendered.startswith(self._seen_text):
            return self._seen_tokens + self.pair.encode(rendered[len(self._seen_text) :])
        return self.pair.encode(rendered)

    def _record(
        self, question: Message, rendered: str, prompt: list[int], events: Iterator[Event]
    ) -> Iterator[Event]:
        """Pass the events on, and in the end, however it comes, keep what was said."""
        answer, said = "", list[int]()
        try:
            for event in events:
                answer += event.text
                said += event.tokens
                yield event
        finally:
            if said:
                self.messages += [question, {"role": "assistant", "content": answer}]
                self._seen_tokens = prompt + said
                self._seen_text = rendered + self.pair.tokenizer.decode(said)

    def _finish_reply(self) -> None:
        """Close a reply that was left half read, so that it is recorded before the next turn."""
        reply, self._reply = self._reply, None
        if isinstance(reply, Generator):
            reply.close()
