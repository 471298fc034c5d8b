"""One reply: from the engine's events to the screen, until it ends or is stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.events import Event, Stats
from .interrupt import Interrupt, interruptible
from .keyboard import no_echo
from .view import View

if TYPE_CHECKING:
    from ..engine.context import Progress
    from ..engine.session import Reply as Events


@dataclass
class Reply:
    """What came of a question. `ending` is "stop", "length", or "interrupted"."""

    answer: str = ""
    thinking: str = ""
    ending: str = "interrupted"
    stats: Stats | None = None

    def add(self, event: Event) -> None:
        """Take in what one round said."""
        self.answer += event.text
        self.thinking += event.thinking
        self.stats = event.stats
        if event.finish_reason is not None:
            self.ending = event.finish_reason


def show_reply(ask: Callable[[Progress], Events], view: View, *, stoppable: bool) -> Reply:
    """Ask, and show the reply as it comes.

    `stoppable`: Ctrl-C ends the reply, which keeps its part; otherwise it ends the program.
    """
    reply = Reply()
    with (
        interruptible() if stoppable else nullcontext(Interrupt()) as interrupt,
        no_echo(whole_lines=True),
        view.reply(),
    ):

        def progress(done: int, total: int) -> None:
            view.progress(done, total)
            if interrupt.asked:
                raise KeyboardInterrupt

        events = ask(progress)
        try:
            for event in events:
                reply.add(event)
                view.show(event)
                if interrupt.asked:
                    break
        except KeyboardInterrupt:
            if not stoppable:
                raise
        finally:
            events.close()
    return reply
