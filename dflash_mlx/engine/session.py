"""A conversation with a pair: messages in, a stream of events out, caches kept between turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError
from .context import Progress
from .events import Event
from .generation import stream
from .options import Options

if TYPE_CHECKING:
    from ..pair import Pair

Message = dict[str, str]
Reply = Generator[Event, None, None]


class Session:
    """A conversation. Each turn forwards only what is new, through both caches.

    A reply that is cut short (Ctrl-C, a closed generator, an exception) stays in the conversation
    as far as it came; if nothing of it came, its question is withdrawn too. `messages` are the
    conversation so far. `thinking` switches a model's reasoning on or off where its template has
    such a switch; None leaves it as the pair has it.
    """

    def __init__(
        self,
        pair: Pair,
        options: Options,
        system: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        self.pair = pair
        self.options = options
        self.thinking = thinking
        self.context = pair.context()
        self.messages: list[Message] = []
        self._retries = 0
        self._reply: Reply | None = None
        self._seen: list[tuple[str, list[int]]] = []  # texts and their tokens, longest first
        self.system = system

    @property
    def turn(self) -> int:
        """How many questions have an answer: the number of the next reply, from 0."""
        return sum(message["role"] == "user" for message in self.messages)

    @property
    def system(self) -> str | None:
        """The instructions ahead of the conversation; None is the model's own."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._finish_reply()
        said = self.messages if self.system is None else self.messages[1:]
        self.messages = [*([{"role": "system", "content": text}] if text else []), *said]

    def send(
        self, text: str, options: Options | None = None, progress: Progress | None = None
    ) -> Reply:
        """Ask `text`; the reply as a stream of events. Raises DFlashError where it cannot fit."""
        self._finish_reply()
        self._retries = 0
        return self._ask(text, len(self.messages), self.turn, options, progress)

    def retry(self, options: Options | None = None, progress: Progress | None = None) -> Reply:
        """Answer the last question anew, with other noise; the old answer goes when words come.

        Raises UsageError where no question was asked.
        """
        self._finish_reply()
        place = self._last_question()
        self._retries += 1
        return self._ask(self.messages[place]["content"], place, self.turn - 1, options, progress)

    def undo(self) -> str:
        """Take back the last question, which is returned, and its answer. Raises UsageError."""
        self._finish_reply()
        place = self._last_question()
        question = self.messages[place]["content"]
        del self.messages[place:]
        self._retries = 0
        return question

    def load(self, messages: Sequence[Message]) -> None:
        """Go on from another conversation; what it shares with this one is not forwarded again."""
        self._finish_reply()
        self.messages = [dict(message) for message in messages]
        self._retries = 0

    def _last_question(self) -> int:
        places = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise UsageError("Nothing has been asked yet.")
        return places[-1]

    def _ask(
        self,
        text: str,
        place: int,
        turn: int,
        options: Options | None,
        progress: Progress | None,
    ) -> Reply:
        """Ask `text` after the first `place` messages, and forget the later ones if words come."""
        question = {"role": "user", "content": text}
        rendered = self.pair.render([*self.messages[:place], question], self.thinking)
        prompt = self._encode(rendered)
        events = stream(
            self.pair,
            self.context,
            prompt,
            options or self.options,
            turn=turn,
            retry=self._retries,
            progress=progress,
        )
        self._reply = self._record(question, place, rendered, prompt, events)
        return self._reply

    def _encode(self, rendered: str) -> list[int]:
        """Token ids of a rendered conversation, keeping those that were seen or said before.

        A reply encoded anew may give other tokens than the model wrote; the caches hold its own.
        """
        for text, tokens in self._seen:
            if rendered.startswith(text):
                rest = rendered[len(text) :]
                return tokens + (self.pair.encode(rest) if rest else [])
        return self.pair.encode(rendered)

    def _record(
        self,
        question: Message,
        place: int,
        rendered: str,
        prompt: list[int],
        events: Iterator[Event],
    ) -> Reply:
        """Pass the events on, and in the end, however it comes, keep what was said."""
        answer, said = "", list[int]()
        try:
            for event in events:
                answer += event.text
                said += event.tokens
                yield event
        finally:
            if said:
                self.messages[place:] = [question, {"role": "assistant", "content": answer}]
                whole = rendered + self.pair.tokenizer.decode(said)
                self._seen = [(whole, prompt + said), (rendered, prompt)]

    def _finish_reply(self) -> None:
        """Close a reply that was left half read, so that it is recorded before the next turn."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.close()
