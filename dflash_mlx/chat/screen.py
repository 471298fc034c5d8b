"""A chat on a terminal that can redraw: Markdown while it is written, thinking as one line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from ..engine.events import Event
from .canvas import Canvas
from .markdown import MarkdownStream, Piece
from .prose import Prose
from .view import harmless

_PAUSE = 1 / 30  # seconds between two drawings, so that fast models are not held up


class ScreenView:
    """Everything goes to the terminal, the program's own words dimmed."""

    def __init__(self, console: Console, canvas: Canvas, show_thinking: bool = False) -> None:
        self.show_thinking = show_thinking
        self._console = console
        self._canvas = canvas
        self._prose = Prose(console)
        self._begin()

    def _begin(self) -> None:
        self._answer = MarkdownStream()
        self._thinking = MarkdownStream()
        self._thoughts: int | None = None  # tokens of the reasoning that is going on
        self._finished: list[Text] = []  # not drawn yet
        self._begun = False  # something of this reply was finished
        self._drawn = 0.0

    @property
    def width(self) -> int:
        return self._canvas.width

    @contextmanager
    def reply(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._end_thinking()
            self._finish(self._answer.finish())
            self._canvas.draw(self._finished)

    def progress(self, done: int, total: int) -> None:
        if done < total:
            self._canvas.draw([], [Text(f"reading the prompt: {done} of {total} tokens", "dim")])

    def show(self, event: Event) -> None:
        if event.thinking:
            self._thoughts = self._thoughts or 0
            if self.show_thinking:
                self._finish(self._thinking.push(harmless(event.thinking)), "dim")
        if self._thoughts is not None and (event.thinking or not event.text):
            self._thoughts += len(event.tokens)
        if event.text:
            self._end_thinking()
            self._finish(self._answer.push(harmless(event.text)))
        if event.finish_reason is None and time.monotonic() - self._drawn >= _PAUSE:
            self._canvas.draw(self._finished, self._open())
            self._finished = []
            self._drawn = time.monotonic()

    def _open(self) -> list[Text]:
        """The lines that are not finished."""
        if self._thoughts is not None and not self.show_thinking:
            return [self._count()]
        thinking = self._thoughts is not None
        piece = (self._thinking if thinking else self._answer).open
        return self._lines(piece, "dim" if thinking else "", wrap_code=True) if piece else []

    def _count(self) -> Text:
        return Text(f"thinking ... {self._thoughts} tokens", "dim")

    def _end_thinking(self) -> None:
        """The answer begins, or there will be none."""
        if self._thoughts is None:
            return
        if self.show_thinking:
            self._finish(self._thinking.finish(), "dim")
        else:
            self._finished.append(self._count())
            self._begun = True
        self._thoughts = None

    def _finish(self, pieces: list[Piece], style: str = "") -> None:
        for piece in pieces:
            lines = self._lines(piece, style, wrap_code=False)
            self._finished += lines
            self._begun = self._begun or bool(lines)

    def _lines(self, piece: Piece, style: str, wrap_code: bool) -> list[Text]:
        """A piece's lines, with a blank one ahead where it is not the first."""
        lines = self._prose.lines(piece, self._canvas.width, wrap_code=wrap_code)
        for line in lines:
            line.stylize(style)
        return [Text(), *lines] if lines and self._begun and not piece.glued else lines

    def say(self, text: str) -> None:
        self._print(Text(harmless(text)))

    def aside(self, text: str) -> None:
        self._print(Text(harmless(text), "dim"))

    def complain(self, text: str) -> None:
        self._print(Text.assemble(("error: ", "bold red"), harmless(text)))

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False)
