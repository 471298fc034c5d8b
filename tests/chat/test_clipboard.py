"""Copying: the system's own program where there is one, else the terminal."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import pytest

from dflash_mlx.chat.clipboard import copy
from dflash_mlx.errors import DFlashError

from .glass import Glass

TEXT = "the answer, naïve"


def program(folder: Path, name: str, body: str) -> None:
    """A program of that name on the PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("pbcopy", {}),
        ("wl-copy", {"WAYLAND_DISPLAY": "wayland-0"}),
        ("xclip", {"DISPLAY": ":0"}),
        ("xsel", {"DISPLAY": ":0"}),
    ],
)
def test_the_systems_program_gets_the_text(
    tmp_path: Path, name: str, environment: dict[str, str]
) -> None:
    program(tmp_path, name, f"/bin/cat > {tmp_path}/copied")
    assert copy(TEXT, {"PATH": str(tmp_path), **environment}) == name
    assert (tmp_path / "copied").read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("body", ["exit 1", ""])
def test_without_a_program_that_works_the_terminal_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """Over ssh there is no display, or one that cannot be reached."""
    program(tmp_path, "xclip", body)
    glass = Glass()
    monkeypatch.setattr(sys, "stdout", glass)
    environment = {"PATH": str(tmp_path)} | ({"DISPLAY": ":0"} if body else {})
    assert copy(TEXT, environment) == "the terminal"
    code = base64.b64encode(TEXT.encode()).decode()
    assert glass.getvalue() == f"\x1b]52;c;{code}\x07"
    assert glass.lines == [""]


def test_without_either_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(DFlashError, match="no clipboard here"):
        copy(TEXT, {"PATH": str(tmp_path)})
