"""The conversation between a person and a pair: read, answer, repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..commands.statsline import format_stats
from ..errors import DFlashError
from .reader import Reader
from .reply import Reply, show_reply
from .slash import is_command, run_command
from .view import View

if TYPE_CHECKING:
    from ..engine.context import Progress
    from ..engine.options import Options
    from ..engine.session import Reply as Events
    from ..pair import Pair


class Chat:
    """What a chat knows: its pair, its conversation, and the last reply."""

    def __init__(
        self, pair: Pair, options: Options, system: str | None, reader: Reader, view: View
    ) -> None:
        self.session = pair.session(system, options)
        self.reader = reader
        self.view = view
        self.reply = Reply()
        self.leaving = False

    def run(self) -> None:
        """Answer until the person leaves or the input ends. An error at a terminal is only told."""
        while not self.leaving:
            try:
                line = self.reader.read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self.reader.at_terminal:
                    raise
                self.view.say("Ctrl-D or /exit leaves.")
                continue
            try:
                self.take(line)
            except DFlashError as error:
                if not self.reader.at_terminal:  # a script wants the exit code
                    raise
                self.view.complain(str(error))

    def take(self, line: str) -> None:
        """Do what a line says: a command, or a message to be answered. Raises DFlashError."""
        if is_command(line):
            run_command(self, line)
        elif message := line.strip():
            self.answer(message)

    def answer(self, message: str) -> None:
        """Ask the pair and show its reply."""

        def ask(progress: Progress) -> Events:
            return self.session.send(message, progress=progress)

        self.reply = show_reply(ask, self.view, stoppable=self.reader.at_terminal)
        if self.reply.stats is None:
            self.view.say("Stopped before the first word; the question is forgotten.")
        else:
            ended = self.reply.ending in ("stop", "length")
            line = format_stats(self.reply.stats, self.reply.ending if ended else None)
            self.view.say(line)

    def new(self) -> None:
        """Forget the conversation; the instructions ahead of it stay."""
        system = self.session.system
        self.session.load([])
        self.session.system = system
        self.reply = Reply()
