"""Files of a chat: whole, private, and clear about what is wrong with them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx.chat.saved import SavedConversations, name_for_now
from dflash_mlx.chat.state import PairNames, last_pair, private_file, write_json
from dflash_mlx.errors import DFlashError, UsageError
from tests.conftest import ROOT

TALK = [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "ho\n"}]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_json(tmp_path / "new" / "a.json", {})
        private_file(tmp_path / "new" / "history")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "a.json") == 0o600
    assert mode(tmp_path / "new" / "history") == 0o600


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("kept")
    (tmp_path / "history").chmod(0o644)
    path = private_file(tmp_path / "history")
    assert (mode(path), path.read_text()) == (0o600, "kept")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DFlashError, match="/file is a file where a folder should be"):
        write_json(tmp_path / "file" / "a.json", {})


def test_a_conversation_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = SavedConversations(tmp_path)
    messages = [{"role": "system", "content": "be brief"}, *TALK]
    path = saved.save("my talk", messages, "a-model", replace=False)
    assert saved.load("my talk") == messages
    assert json.loads(path.read_text(encoding="utf-8"))["model"] == "a-model"
    assert [file.name for file in tmp_path.iterdir()] == ["my talk.json"]


def test_the_latest_conversation_is_listed_first(tmp_path: Path) -> None:
    saved = SavedConversations(tmp_path)
    assert saved.names() == []
    for age, name in enumerate(("new", "old", "oldest")):
        os.utime(saved.save(name, TALK, "m", replace=False), (0, 1000 - age))
    assert saved.names() == ["new", "old", "oldest"]


def test_an_older_conversation_is_only_replaced_if_that_is_wanted(tmp_path: Path) -> None:
    saved = SavedConversations(tmp_path)
    saved.save("talk", TALK, "m", replace=False)
    with pytest.raises(UsageError, match="named talk already"):
        saved.save("talk", [], "m", replace=False)
    assert saved.load("talk") == TALK
    saved.save("talk", [], "m", replace=True)
    assert saved.load("talk") == []


@pytest.mark.parametrize("name", ["../talk", "a/b", ".hidden", "", "a\nb", "a" * 51])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="A name has up to 50 letters"):
        SavedConversations(tmp_path / "inside").save(name, TALK, "m", replace=False)
    assert not (tmp_path / "talk.json").exists()


def test_a_name_made_of_the_time_is_a_name(tmp_path: Path) -> None:
    saved = SavedConversations(tmp_path)
    saved.save(name_for_now(), TALK, "m", replace=False)
    assert saved.load(saved.names()[0]) == TALK


def test_a_name_that_does_not_exist_gets_a_hint(tmp_path: Path) -> None:
    saved = SavedConversations(tmp_path)
    saved.save("gravity", TALK, "m", replace=False)
    with pytest.raises(UsageError, match="did you mean gravity"):
        saved.load("gravty")
    with pytest.raises(UsageError, match="/load lists"):
        saved.load("something else")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"format": 99, "messages": TALK}),
        json.dumps({"format": 1, "messages": "hello"}),
        json.dumps({"format": 1, "messages": [{"role": "user"}]}),
        json.dumps({"format": 1, "messages": TALK[1:]}),
        json.dumps({"format": 1, "messages": [{"role": "tool", "content": "x"}]}),
        json.dumps({"format": 1, "messages": [{**m, "content": "\ud800"} for m in TALK]}),
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_conversation_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "talk.json").write_text(content)
    with pytest.raises(DFlashError, match=r"talk\.json"):
        SavedConversations(tmp_path).load("talk")


WRITER = """
import sys
from pathlib import Path
from dflash_mlx.chat.state import write_json
for _ in range(300):
    write_json(Path(sys.argv[1]) / "a.json", {"text": "x" * 100_000})
"""


def test_two_chats_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"text": "x" * 100_000}
    assert mode(tmp_path / "a.json") == 0o600


def test_the_last_pair_is_remembered_with_folders_by_their_full_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert last_pair(tmp_path) is None
    PairNames("model", "org/drafter").remember(tmp_path)
    assert last_pair(tmp_path) == PairNames(str(tmp_path / "model"), "org/drafter")


def test_a_folder_in_a_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(DFlashError, match=r"/a\.json cannot be written \(Is a directory\)"):
        write_json(tmp_path / "a.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_last_pair_that_is_broken_is_said(tmp_path: Path) -> None:
    (tmp_path / "last-pair.json").write_text('{"model": 3}')
    with pytest.raises(DFlashError, match="names no pair"):
        last_pair(tmp_path)
