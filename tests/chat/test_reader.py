"""Lines of a terminal without comforts."""

from __future__ import annotations

import io
import sys

import pytest

from dflash_mlx.chat.reader import PlainReader
from dflash_mlx.errors import UsageError


def test_bytes_that_are_no_text_are_told_and_the_next_line_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a terminal with another encoding sends them."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(_Lines([b"caf\xe9\n", b"tea\n"])))
    reader = PlainReader()
    with pytest.raises(UsageError, match="no valid UTF-8"):
        reader.read()
    assert reader.read() == "tea"


class _Lines(io.BytesIO):
    """Hands out a line at a time, as a terminal does."""

    def __init__(self, lines: list[bytes]) -> None:
        super().__init__()
        self._lines = lines

    def read1(self, _size: int | None = -1, /) -> bytes:
        return self._lines.pop(0) if self._lines else b""
