"""A conversation on the disk goes on as if it had never been put down."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.chat.loop import Chat
from dflash_mlx.chat.reply import Reply
from dflash_mlx.chat.saved import SavedConversations
from dflash_mlx.chat.state import PairNames
from dflash_mlx.engine.events import Stats
from dflash_mlx.engine.options import Options
from dflash_mlx.engine.session import Session
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, load_pair
from tests.chat.pairs import write_talking_pair
from tests.tiny_folders import TinyPair


def loaded(folders: TinyPair) -> Pair:
    """The pair as a new process has it."""
    names = PairFolders("tiny", folders.target, "drafter", folders.drafter)
    return load_pair(names, None, prepare(exact=sys.platform == "linux"))


def tokens(session: Session, text: str) -> list[int]:
    return [token for event in session.send(text) for token in event.tokens]


@pytest.mark.parametrize("draft", [True, False])
def test_saved_and_loaded_again_it_says_the_same(tmp_path: Path, draft: bool) -> None:
    """Report 76: after a restart, the next answer has the ids that it would have had."""
    folders = write_talking_pair(tmp_path / "pair")
    options = Options(max_tokens=12, draft=draft, seed=4)
    first = loaded(folders).session(options=options)
    tokens(first, "hello")
    SavedConversations(tmp_path).save("talk", first.messages, "tiny", replace=False)
    expected = tokens(first, "and then")

    again = loaded(folders).session(options=options)
    again.load(SavedConversations(tmp_path).load("talk"))

    assert tokens(again, "and then") == expected
    assert again.messages == first.messages


def test_a_conversation_of_nothing_is_saved_and_loaded_too(tmp_path: Path) -> None:
    """Report 76: what is empty breaks no writer."""
    saved = SavedConversations(tmp_path)
    saved.save("nothing", [], "tiny", replace=False)
    assert saved.load("nothing") == []


def test_a_drafter_that_is_never_right_is_told_of_once_a_pair(tmp_path: Path) -> None:
    """Report 21."""
    pair = loaded(write_talking_pair(tmp_path / "pair"))
    reader: Any = SimpleNamespace(complete=None)
    view: Any = SimpleNamespace()
    chat: Any = Chat(
        lambda _: pair,
        PairNames("tiny", "drafter"),
        lambda _: Options(),
        reader,
        view,
        tmp_path,
    )
    stats = Stats(pair.configuration, seed=1, accepted=[0] * 17, drafted=[7] * 17)
    chat.reply = replace(Reply(), stats=stats)
    told = [any("not one draft of 16" in line for line in chat._remarks()) for _ in range(2)]
    assert told == [True, False]
