"""`dflash-mlx chat`: a conversation in the terminal."""

from __future__ import annotations

from ..chat.loop import Chat
from ..chat.reader import make_reader
from ..chat.view import PlainView
from .arguments import ChatArguments
from .loading import load_for


def run(arguments: ChatArguments) -> None:
    """Load the pair and talk until the person leaves."""
    pair = load_for(arguments)
    pair.render([{"role": "user", "content": ""}])  # a model that cannot chat is told of at once
    reader, view = make_reader(), PlainView()
    if reader.at_terminal:
        view.say(f"{pair.configuration.model}: /help lists the commands, Ctrl-D leaves.")
    Chat(pair, arguments.options(pair.defaults), arguments.system, reader, view).run()
