"""Conversations on disk: JSON files that /save writes and /load reads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeGuard

from ..errors import DFlashError, UsageError
from ..whole_file import read_object
from .state import write_json

Message = dict[str, str]
_FORMAT = 1
_NAME = re.compile(r"\w[\w .+-]{0,49}")


class SavedConversations:
    """The conversations in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """All names, the latest first."""
        files = self.folder.glob("[!.]*.json")
        return [path.stem for path in sorted(files, key=_time, reverse=True)]

    def save(self, name: str, messages: Sequence[Message], model: str, replace: bool) -> Path:
        """Write a conversation; an older one of that name only goes if `replace`.

        Raises DFlashError.
        """
        path = self._path(name)
        if path.exists() and not replace:
            raise UsageError(f"There is a conversation named {name} already: choose another name.")
        content = {"format": _FORMAT, "model": model, "messages": list(messages)}
        write_json(path, content)
        return path

    def load(self, name: str) -> list[Message]:
        """The messages of a conversation. Raises DFlashError where there is none such."""
        path = self._path(name)
        if not path.exists():
            close = difflib.get_close_matches(name, self.names(), 1)
            hint = f"did you mean {close[0]}?" if close else "/load lists what there is."
            raise UsageError(f"There is no conversation named {name}: {hint}")
        content = read_object(path, "delete it")
        messages = content.get("messages")
        if content.get("format") != _FORMAT or not _are_messages(messages):
            raise DFlashError(f"{path} is not a conversation that this version can read.")
        return [{"role": m["role"], "content": m["content"]} for m in messages]

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(
                "A name has up to 50 letters, digits, spaces and . _ + - in it, and no more."
            )
        return self.folder / f"{name}.json"


def name_for_now() -> str:
    """A name for a conversation that was given none: the time."""
    return datetime.now().strftime("%Y-%m-%d %H.%M.%S")


def _time(path: Path) -> float:
    return path.stat().st_mtime


def _are_messages(value: object) -> TypeGuard[list[Message]]:
    """Whether these are questions and answers in turn, perhaps after a system's words."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return False
    roles = [message.get("role") for message in value]
    talk = roles[1:] if roles[:1] == ["system"] else roles
    in_turn = talk == ["user", "assistant"] * (len(talk) // 2)
    return in_turn and all(_is_text(message.get("content")) for message in value)


def _is_text(value: object) -> bool:
    """Whether this is a string that UTF-8 can say: JSON may hold halves of characters."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()
