"""One reply: from the engine's events to the screen, until it ends or is stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.events import Event, Stats
from .interrupt import Interrupt, interruptible
from .keyboard import no_echo
from .reader import Reader
from .repetition import RepetitionWatch
from .view import View

if TYPE_CHECKING:
    from ..engine.context import Progress
    from ..engine.session import Reply as Events


@dataclass
class Reply:
    """What came of a question.

    `finish_reason` is the engine's, and None where the reply was stopped: by a person, or because
    it `repeated` a span. Without `stats`, nothing came.
    """

    answer: str = ""
    thinking: str = ""
    finish_reason: str | None = None
    repeated: str | None = None
    stats: Stats | None = None

    def add(self, event: Event) -> None:
        """Take in what one round said."""
        self.answer += event.text
        self.thinking += event.thinking
        self.stats = event.stats
        self.finish_reason = event.finish_reason


def show_reply(
    ask: Callable[[Progress], Events], view: View, reader: Reader, loop_stop: bool
) -> Reply:
    """Ask, and show the reply as it comes.

    At a terminal Ctrl-C ends the reply, which keeps its part; otherwise it ends the program.
    """
    reply, watch = Reply(), RepetitionWatch()
    stoppable = interruptible() if reader.at_terminal else nullcontext(Interrupt())
    with stoppable as interrupt, no_echo(whole_lines=reader.whole_lines), view.reply():

        def progress(done: int, total: int) -> None:
            view.progress(done, total)
            if interrupt.asked:
                raise KeyboardInterrupt

        events = ask(progress)
        try:
            for event in events:
                reply.add(event)
                view.show(event)
                if loop_stop and event.finish_reason is None:
                    reply.repeated = watch.push(event.thinking + event.text)
                if interrupt.asked or reply.repeated is not None:
                    break
        except KeyboardInterrupt:
            if not reader.at_terminal:
                raise
        finally:
            events.close()
    return reply
