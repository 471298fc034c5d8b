"""`dflash-mlx chat`: a conversation in the terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from ..chat.loop import Chat
from ..chat.reader import PipeReader, PlainReader, Reader
from ..chat.state import PairNames, last_pair, private_file, state_folder
from ..chat.view import PlainView, View
from ..errors import DFlashError, sentence
from ..hub.embedded import NAME as EMBEDDED
from ..hub.registry import suggestion
from ..pair import Pair
from .arguments import ChatArguments
from .loading import load_for, tune


def run(arguments: ChatArguments) -> None:
    """Load the pair and talk until the person leaves."""
    folder = state_folder()
    reader, view = terminal(arguments, folder)
    chat = _open_chat(arguments, reader, view, folder)
    chat.loop_stop = not arguments.no_loop_stop
    chat.session.system = arguments.system
    chat.session.thinking = arguments.thinking
    if arguments.thinking is not None and not chat.pair.can_switch_thinking:
        view.say("note: this model's template has no switch for thinking.")
    if reader.at_terminal:
        if chat.names.model == EMBEDDED and arguments.model is None and (line := suggestion()):
            view.say(line)
        view.say(f"{chat.describe_pair()}. /help lists the commands, Ctrl-D leaves.")
    chat.run()


def terminal(arguments: ChatArguments, folder: Path) -> tuple[Reader, View]:
    """How to read and show: with all comforts where both ends are a terminal that can redraw."""
    if not sys.stdin.isatty():
        return PipeReader(), PlainView(arguments.show_thinking)
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
    if arguments.plain or dumb or not sys.stdout.isatty():
        return PlainReader(), PlainView(arguments.show_thinking)
    from rich.console import Console

    from ..chat.canvas import Canvas
    from ..chat.prompt import PromptReader
    from ..chat.screen import ScreenView

    console = Console()
    view = ScreenView(console, Canvas(console), arguments.show_thinking)
    return PromptReader(None if arguments.no_history else _history(folder, view)), view


def _history(folder: Path, view: View) -> Path | None:
    """The file that keeps messages for the next chat; None where it cannot be written."""
    try:
        return private_file(folder / "history")
    except DFlashError as error:
        view.say(f"note: the history is not kept: {error}")
        return None


def _open_chat(arguments: ChatArguments, reader: Reader, view: View, folder: Path) -> Chat:
    """A chat with the pair that was asked for, else with the last one, else the embedded one."""

    def load(names: PairNames) -> Pair:
        pair = load_for(replace(arguments, model=names.model, draft_model=names.draft_model))
        pair.render([{"role": "user", "content": "Hi"}])  # refuses a model without a template
        tune(pair, arguments.options(pair.defaults))
        try:
            names.remember(folder)
        except DFlashError as error:
            view.say(f"note: the next chat will not know this pair: {error}")
        return pair

    def open_with(names: PairNames) -> Chat:
        return Chat(load, names, lambda p: arguments.options(p.defaults), reader, view, folder)

    if arguments.model is not None or arguments.draft_model != "auto":
        return open_with(PairNames(arguments.model or EMBEDDED, arguments.draft_model))
    try:
        if names := last_pair(folder):
            return open_with(names)
    except (DFlashError, OSError) as error:
        why = sentence(error) if isinstance(error, OSError) else error
        view.say(f"note: the last pair cannot be used: {why} Taking {EMBEDDED}.")
    return open_with(PairNames(EMBEDDED))
