"""Large downloads: what came before a lost connection, a kill or a full disk is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.constants
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import download, resume
from dflash_mlx.hub.download import fetch_repository, missing_bytes
from tests.conftest import ROOT
from tests.hub.fake_hub import FakeHub, etag, point_client_at, serve

SMALL, SIZE = 1000, 60_000
WEIGHTS = bytes(range(256)) * (SIZE // 256)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
PART = len(WEIGHTS) // 3


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that has `org/name`, whose weights count as a large file."""
    with serve() as hub:
        hub.files["org/name"] = FILES
        point_client_at(hub, tmp_path / "hub", monkeypatch)
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", SMALL)  # what may be lost: 10 MB
        monkeypatch.setattr(resume, "LARGE", SMALL)
        yield hub


@pytest.fixture
def leave_partial(tmp_path: Path) -> Callable[[bytes], Path]:
    """Leave the beginning of the weights where an interrupted download would."""

    def leave(content: bytes) -> Path:
        name = etag("model.safetensors", WEIGHTS) + resume.SUFFIX
        partial = tmp_path / "hub" / "models--org--name" / "blobs" / name
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        return partial

    return leave


def fetched(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def nothing(stage: str, done: int, total: int) -> None:
    pass


def test_a_large_file_lands_where_the_client_of_the_hub_would_put_it(
    hub: FakeHub, tmp_path: Path
) -> None:
    folder = fetch_repository("org/name", nothing)
    assert fetched(folder) == WEIGHTS
    blob = (folder / "model.safetensors").resolve()
    assert blob == tmp_path / "hub/models--org--name/blobs" / etag("model.safetensors", WEIGHTS)
    assert hub.ranges == []


@pytest.mark.usefixtures("hub")
def test_progress_counts_all_files_once_and_ends_with_the_whole() -> None:
    told: list[tuple[str, int, int]] = []
    fetch_repository("org/name", lambda *step: told.append(step))
    size = sum(map(len, FILES.values()))
    done = [done for _, done, _ in told]
    assert done == sorted(done)
    assert told[-1] == ("fetching org/name (0 MB)", size, size)


def test_a_lost_connection_is_taken_up_where_it_broke(hub: FakeHub) -> None:
    hub.cuts["model.safetensors"] = PART
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS
    assert hub.ranges == [f"bytes={PART // SMALL * SMALL}-"]


def test_the_next_call_goes_on_with_what_the_last_one_left(
    hub: FakeHub, leave_partial: Callable[[bytes], Path]
) -> None:
    partial = leave_partial(WEIGHTS[:PART])
    assert missing_bytes("org/name") == sum(map(len, FILES.values())) - PART
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS
    assert hub.ranges == [f"bytes={PART}-"]
    assert not partial.exists()


@pytest.mark.parametrize("left", [WEIGHTS, WEIGHTS + b"more", b""], ids=["all", "more", "none"])
def test_what_was_left_may_be_all_or_too_much_or_nothing(
    left: bytes, hub: FakeHub, leave_partial: Callable[[bytes], Path]
) -> None:
    leave_partial(left)
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS
    assert hub.ranges == []


def test_a_damaged_beginning_is_noticed_and_not_kept(
    hub: FakeHub, leave_partial: Callable[[bytes], Path]
) -> None:
    partial = leave_partial(b"?" * PART)
    with pytest.raises(DFlashError, match=r"model\.safetensors of org/name arrived damaged"):
        fetch_repository("org/name", nothing)
    assert not partial.exists()
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS


def test_a_disk_that_is_too_small_is_said_before_a_byte_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, leave_partial: Callable[[bytes], Path]
) -> None:
    free = len(WEIGHTS) // 2

    def check(folder: Path, needed: int) -> None:
        if needed > free:
            raise DFlashError("too small")

    monkeypatch.setattr(download, "check_space", check)
    with pytest.raises(DFlashError, match="too small"):
        fetch_repository("org/name", nothing)
    assert hub.fetched() == set()
    leave_partial(WEIGHTS[:-10])  # what is there already needs no more room
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS


def test_a_disk_that_fills_keeps_what_came(
    hub: FakeHub, leave_partial: Callable[[bytes], Path]
) -> None:
    partial = leave_partial(b"")
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({PART}, {PART}))"
    process = fetching(hub, partial.parents[2], limit)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "limit on file sizes" in complaint
    assert partial.stat().st_size == PART


def test_a_killed_download_goes_on(hub: FakeHub, leave_partial: Callable[[bytes], Path]) -> None:
    partial = leave_partial(b"")
    hub.stalls["model.safetensors"] = PART
    process = fetching(hub, partial.parents[2])
    until(lambda: partial.stat().st_size > SMALL)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = partial.stat().st_size
    assert fetched(fetch_repository("org/name", nothing)) == WEIGHTS
    assert hub.ranges == [f"bytes={kept}-"]


def test_two_at_once_fetch_a_large_file_once(hub: FakeHub) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch_repository, "org/name", nothing) for _ in range(2)]
    assert [fetched(one.result()) for one in both] == [WEIGHTS, WEIGHTS]
    gets = [request for request in hub.requests if request.startswith("GET")]
    assert sum(request.endswith("/model.safetensors") for request in gets) == 1


def fetching(hub: FakeHub, cache: Path, first: str = "") -> subprocess.Popen[str]:
    """A process that fetches `org/name`; the hub is set as a user would set it."""
    program = f"""
{first}
import huggingface_hub.constants
from dflash_mlx.hub import download, resume
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = resume.LARGE = {SMALL}
download.fetch_repository("org/name", print)
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(cache),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(happened: Callable[[], bool]) -> None:
    """Wait for something, for half a minute at most."""
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)
