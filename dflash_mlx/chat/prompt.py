"""The line that a person types on: history, editing, pasted paragraphs, and Tab for commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from .reader import Complete, Reader


class PromptReader(Reader):
    """Reads messages with prompt-toolkit. `history` None keeps none beyond this chat."""

    at_terminal = True
    whole_lines = False
    keys = (
        "Enter sends, Alt-Enter or Ctrl-J begins a new line, Up and Down recall, Tab\n"
        "completes commands. Ctrl-C stops a reply and keeps its part. Ctrl-D leaves."
    )

    def __init__(self, history: Path | None) -> None:
        self._history = _KeptHistory(history) if history else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            [("", "\n"), ("class:prompt", "> ")],
            multiline=True,
            prompt_continuation="  ",
            history=self._history,
            completer=_CommandCompleter(lambda text: self.complete(text)),
            complete_while_typing=False,
            key_bindings=_keys(),
            enable_suspend=True,
            style=Style.from_dict({"prompt": "bold"}),
        )

    def read(self) -> str:
        """The next message. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C."""
        return self._session.prompt()


class _KeptHistory(FileHistory):
    """A history that goes on without its file when the disk refuses."""

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError as error:
            said = f"The history is not kept: {error.strerror}."
            run_in_terminal(lambda: print(said))


class _CommandCompleter(Completer):
    """Completes lines that begin with a slash, and no others."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            _, space, argument = text.partition(" ")
            start = -len(argument if space else text)
            for word in self._complete(text):
                yield Completion(word, start_position=start)


def _keys() -> KeyBindings:
    """Enter sends, though several lines may be edited; Ctrl-C clears them first."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
