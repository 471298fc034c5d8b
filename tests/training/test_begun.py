"""A folder of conversations holds those of one target and one manner, whoever resumes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.training.begun import refuse_change
from dflash_mlx.training.prepare import Prepare
from dflash_mlx.training.run import noted_settings
from dflash_mlx.training.settings import PrepareSettings
from tests.tiny_folders import tiny_pair

WRITTEN_LINE = json.dumps(
    {"key": "k", "looped": False, "ids": [1, 2, 3], "assistant": "011", "temperature": 0.0}
)
WRITTEN_LINE += "\n"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


def settings(**changes: object) -> PrepareSettings:
    given = {"topics": 1, "length": 80, "long_share": 0.0}
    return PrepareSettings(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "identity", "words"),
    [
        ({"system": "Be brief."}, "tiny", 'system null, not with system "Be brief."'),
        ({"thinking": False}, "tiny", "thinking null, not with thinking false"),
        ({"length": 90, "turns": 1}, "tiny", "turns 3, length 80, not with turns 1, length 90"),
        ({"temperature": 0.2}, "tiny", "temperature 0.7, not with temperature 0.2"),
        ({}, "other", 'target "tiny", not with target "other"'),
    ],
)
def test_conversations_of_another_kind_do_not_join(
    pair: Pair, tmp_path: Path, changes: dict[str, Any], identity: str, words: str
) -> None:
    next(Prepare(pair, settings(), tmp_path, "tiny").run())
    (tmp_path / "written.jsonl").write_text(WRITTEN_LINE)
    assert next(Prepare(pair, settings(), tmp_path, "tiny").run()).done == 1
    with pytest.raises(UsageError, match="another --folder") as caught:
        next(Prepare(pair, settings(**changes), tmp_path, identity).run())
    assert words in str(caught.value)


def test_a_folder_without_the_note_goes_on(pair: Pair, tmp_path: Path) -> None:
    """It was begun before there was one."""
    (tmp_path / "written.jsonl").write_text(WRITTEN_LINE)
    chosen = settings(system="Be brief.")
    assert next(Prepare(pair, chosen, tmp_path, "other").run()).done == 1
    assert not (tmp_path / "begun.json").exists()


def test_a_stage_that_was_stopped_before_anything_was_written_may_change(
    pair: Pair, tmp_path: Path
) -> None:
    for chosen in (settings(), settings(system="Be brief.")):
        next(Prepare(pair, chosen, tmp_path, "tiny").run())
    assert json.loads((tmp_path / "begun.json").read_text())["system"] == "Be brief."


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_note_of_ours_is_not_to_be_fetched_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "begun.json").write_text(text)
    (tmp_path / "settings.json").write_text(text)
    for read in (lambda: refuse_change(tmp_path, {}), lambda: noted_settings(tmp_path)):
        with pytest.raises(DFlashError, match="choose another --folder"):
            read()
