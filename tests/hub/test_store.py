"""Folders that are whole or absent: after success, failure, a kill, and with two at once."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.chat.settings import config_file
from dflash_mlx.chat.state import state_folder
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import store
from dflash_mlx.hub.store import atomic_folder, check_space, claimed, publish, writing


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "deep" / "model") as new:
        (new / "a").write_text("1")
        assert not (tmp_path / "deep" / "model").exists()
    assert (tmp_path / "deep" / "model" / "a").read_text() == "1"
    assert names(tmp_path / "deep") == {"model"}


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_failure_leaves_nothing(failure: type[BaseException], tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "model") as new:
            (new / "a").write_text("1")
            raise failure

    with pytest.raises(failure):
        fail()
    assert names(tmp_path) == set()


def test_what_exists_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    old = tmp_path / "model"
    old.mkdir()
    (old / "a").write_text("old")
    with pytest.raises(DFlashError, match="exists already"), atomic_folder(old):
        pass
    assert (old / "a").read_text() == "old"
    with atomic_folder(old, replace=True) as new:
        (new / "b").write_text("new")
    assert names(old) == {"b"}
    assert names(tmp_path) == {"model"}


def test_a_failed_replacement_keeps_the_old(tmp_path: Path) -> None:
    old = tmp_path / "model"
    old.mkdir()

    def fail() -> None:
        with atomic_folder(old, replace=True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == {"model"}


def test_an_old_folder_survives_a_kill_between_the_two_renames(tmp_path: Path) -> None:
    workshop = tmp_path / ".model.partial"
    (workshop / "new").mkdir(parents=True)
    (workshop / "old").mkdir()
    (workshop / "old" / "a").write_text("old")
    with claimed(tmp_path / "model") as new:
        assert names(new) == set()
        assert (tmp_path / "model" / "a").read_text() == "old"
    assert names(tmp_path) == {"model"}


KILLED = """
import sys, time
from pathlib import Path
from typing import Any
from dflash_mlx.hub.store import atomic_folder
with atomic_folder(Path(sys.argv[1])) as new:
    (new / "a").write_text("half")
    print("working", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "model")], stdout=subprocess.PIPE
    )
    assert worker.stdout
    assert worker.stdout.readline() == b"working\n"
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert names(tmp_path) == {".model.partial"}
    with atomic_folder(tmp_path / "model") as new:
        assert names(new) == set()
    assert names(tmp_path) == {"model"}


def test_a_second_worker_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    destination = tmp_path / "model"
    built: list[int] = []
    waited: list[int] = []
    inside, go_on = threading.Event(), threading.Event()

    def work(number: int) -> None:
        with claimed(destination, lambda: waited.append(number)) as new:
            inside.set()
            if not destination.exists():
                go_on.wait(10)
                built.append(number)
                publish(new, destination)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    workers[0].start()
    inside.wait(10)
    for worker in workers[1:]:
        worker.start()
    while len(waited) < 3:
        time.sleep(0.01)
    go_on.set()
    for worker in workers:
        worker.join(10)
    assert built == [0]
    assert sorted(waited) == [1, 2, 3]
    assert names(tmp_path) == {"model"}


def test_a_workshop_that_vanishes_while_it_is_looked_at_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's `mkdir` finds it there, and then no folder: its owner has removed it meanwhile."""
    mkdir, answers = Path.mkdir, [FileExistsError(errno.EEXIST, "", f"{tmp_path}/.model.partial")]

    def make(self: Path, *arguments: Any, **options: Any) -> None:
        if answers:
            raise answers.pop()
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make)
    with atomic_folder(tmp_path / "model"):
        pass
    assert names(tmp_path) == {"model"}


def test_folders_made_on_the_way_go_with_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "a" / "b" / "model"):
        raise KeyboardInterrupt
    assert names(tmp_path) == set()
    with atomic_folder(tmp_path / "a" / "b" / "model"):
        pass
    assert (tmp_path / "a" / "b" / "model").is_dir()


@pytest.mark.parametrize("below", ["model", "deep/model"])
def test_a_file_where_a_folder_belongs_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with (
        pytest.raises(DFlashError, match="/cache is a file where a folder should be: move it away"),
        atomic_folder(tmp_path / "cache" / below),
    ):
        pass


def test_a_limit_on_file_sizes_is_no_full_disk(tmp_path: Path) -> None:
    sentence = rf"A file in {tmp_path} would pass the limit on file sizes: raise it \(ulimit -f\)"
    with pytest.raises(DFlashError, match=sentence), writing(tmp_path / "model"):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told(code: int, tmp_path: Path) -> None:
    with (
        pytest.raises(DFlashError, match=r"disk is full at .*: free some space"),
        writing(tmp_path),
    ):
        raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_may_not_be_written_is_told(code: int, tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match=r"/x cannot be written \("), writing(tmp_path):
        raise OSError(code, os.strerror(code), "/x")


def test_a_file_that_may_not_be_written_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("")
    with pytest.raises(DFlashError, match="/history cannot be written"), writing(tmp_path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "history"))


def test_what_is_in_the_making_is_called_by_the_name_it_will_have(tmp_path: Path) -> None:
    place, hidden = tmp_path / "model", tmp_path / ".model.partial"
    with pytest.raises(DFlashError, match="/model cannot be written"), writing(place):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(hidden))


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), writing(tmp_path):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_too_little_space_is_told_with_both_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage(9e9, 9e9, 120e6))
    check_space(tmp_path / "not" / "yet", 120_000_000)
    with pytest.raises(DFlashError, match="needs 300 MB and the disk has 120 MB left"):
        check_space(tmp_path / "not" / "yet", 300_000_000)


def test_a_user_without_a_home_is_told_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    for place in (store.cache_root, state_folder, config_file):
        with pytest.raises(DFlashError, match="no home folder: let HOME name one"):
            place()


def test_the_cache_is_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    assert store.cache_root() == Path("/somebody/.cache/dflash-mlx")
