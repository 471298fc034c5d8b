"""The conversation between a person and a pair: read, answer, repeat."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..commands.statsline import fold, format_stats, list_stats
from ..engine.events import FRUITLESS_NOTE
from ..errors import DFlashError, sentence
from .keyboard import no_echo
from .reader import Reader
from .reply import Reply, show_reply
from .saved import Message, SavedConversations
from .slash import completions, is_command, run_command
from .state import PairNames
from .view import View

if TYPE_CHECKING:
    from ..engine.context import Progress
    from ..engine.options import Options
    from ..engine.session import Reply as Events
    from ..engine.session import Session
    from ..pair import Pair

_CONTEXT_WARNING = 0.8
"""Share of the model's context from which on its end is announced."""


class Chat:
    """What a chat knows: its pair, its conversation, the last reply, and where things are kept.

    `load` loads the pair of these names. `loop_stop`: a reply that repeats itself is stopped.
    """

    pair: Pair
    session: Session
    view: View
    saved: SavedConversations

    def __init__(
        self,
        load: Callable[[PairNames], Pair],
        names: PairNames,
        options: Callable[[Pair], Options],
        reader: Reader,
        view: View,
        folder: Path,
    ) -> None:
        self._load, self._options = load, options
        self._use(load(names), names)
        self.reader = reader
        self.reader.complete = partial(completions, self)
        self.view = view
        self.saved = SavedConversations(folder / "conversations")
        self.saved_as: str | None = None
        self.reply = Reply()
        self.loop_stop = True
        self.leaving = False

    def _use(self, pair: Pair, names: PairNames) -> None:
        self.pair, self.names = pair, names
        self.session = pair.session(options=self._options(pair))
        self.told_fruitless = False

    def run(self) -> None:
        """Answer until the person leaves or the input ends. An error at a terminal is only told."""
        with nullcontext() if self.reader.whole_lines else no_echo(whole_lines=False):
            self._run()

    def _run(self) -> None:
        while not self.leaving:
            try:
                self.take(self.reader.read())
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self.reader.at_terminal:
                    raise
                self.view.say("Ctrl-D or /exit leaves.")
            except (DFlashError, OSError) as error:
                if not self.reader.at_terminal:  # a script wants the exit code
                    raise
                self.view.complain(sentence(error) if isinstance(error, OSError) else str(error))

    def take(self, line: str) -> None:
        """Do what a line says: a command, or a message to be answered. Raises DFlashError."""
        if is_command(line):
            run_command(self, line)
        elif message := line.strip():
            self.answer(message)

    def answer(self, message: str | None) -> None:
        """Ask the pair and show its reply; None asks the last question again."""

        def ask(progress: Progress) -> Events:
            if message is None:
                return self.session.retry(progress=progress)
            return self.session.send(message, progress=progress)

        self.reply = show_reply(ask, self.view, self.reader, self.loop_stop)
        for remark in self._remarks():
            self.view.say(remark)
        if self.reply.stats is not None:
            line = format_stats(self.reply.stats, self.reply.finish_reason)
            self.view.aside(fold(line, self.view.width))

    def _remarks(self) -> list[str]:
        """What a person should know of the last reply, and of what is left of the context."""
        remarks = []
        stats, limit = self.reply.stats, self.pair.target.context_limit
        if stats is None:
            return ["Stopped before the first word; the question is not kept."]
        if stats.fruitless and not self.told_fruitless:
            self.told_fruitless = True
            remarks.append(f"Note: {FRUITLESS_NOTE}.")
        if self.reply.repeated is not None:
            remarks.append(
                "Stopped: the model began to repeat itself (/set loop-stop off lets it go on)."
            )
        used = stats.prompt_tokens + stats.generated_tokens
        if limit is not None and used >= limit:
            remarks.append(f"The model's context of {limit} tokens is full: /new begins afresh.")
        elif self.reply.finish_reason == "length":
            remarks.append("The reply was cut off: /set max-tokens sets how long one may be.")
        if limit is not None and limit > used >= _CONTEXT_WARNING * limit:
            remarks.append(
                f"The conversation takes {used} of the {limit} tokens of the model's context;"
                " /new begins afresh."
            )
        return remarks

    def begin(self, messages: Sequence[Message], saved_as: str | None = None) -> None:
        """Go on with another conversation, whose instructions are the present ones unless given."""
        system = self.session.system
        self.session.load(messages)
        if not messages:
            self.session.system = system
        self.saved_as = saved_as
        self.forget_reply()

    def forget_reply(self) -> None:
        """There is no last reply any more."""
        self.reply = Reply()

    def change_pair(self, names: PairNames) -> None:
        """Go on with another pair, in the same conversation; with the old one where that fails.

        The old pair goes first, since both may not fit in memory. Where even that cannot be loaded
        again, the chat is over.
        """
        import mlx.core as mx

        messages, thinking, before = self.session.messages, self.session.thinking, self.names
        del self.pair, self.session
        gc.collect()
        mx.clear_cache()
        problem: BaseException | None = None
        try:
            self._use(self._load(names), names)
        except BaseException as error:  # Ctrl-C too
            problem, self.leaving = error, True
            self._use(self._load(before), before)
            self.leaving = False
        self.session.thinking = thinking
        self.session.load(messages)
        self.forget_reply()
        if problem is not None:
            raise problem

    def describe_pair(self) -> str:
        """The pair in a line."""
        ran = self.pair.configuration
        drafter = f"with {ran.draft_model}" if ran.draft_model else "without a drafter"
        return f"{ran.model} {drafter}"

    def describe_reply(self) -> str:
        """All statistics of the last reply, one a line."""
        stats = self.reply.stats
        if stats is None:
            return "Nothing was answered yet."
        lines = list_stats(stats, self.reply.finish_reason)
        limit = self.pair.target.context_limit
        if limit is not None:
            used = stats.prompt_tokens + stats.generated_tokens
            lines.append(f"context {used} of {limit} tokens")
        return "\n".join([*lines, *stats.configuration.notes])
