"""Conversations in files: what is read, refused, dropped and held out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.training.conversations import (
    Conversation,
    conversation,
    read_conversations,
    split,
    without_loops,
    without_repeats,
)
from tests.training.tiny import talk


def write(path: Path, *items: Conversation) -> Path:
    text = "".join(item.to_json() + "\n" for item in items)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    wrote = talk(3, 4, 2, 5, temperature=0.7)
    [read] = read_conversations(write(tmp_path / name, wrote))
    assert read.ids.tolist() == wrote.ids.tolist()
    assert read.assistant.tolist() == wrote.assistant.tolist()
    assert read.temperature == 0.7


def test_answers_are_the_spans_that_the_assistant_wrote() -> None:
    assert talk(3, 4, 2, 5).answers == [(3, 7), (9, 14)]
    assert talk(6).answers == []


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"ids": [1, 2]}',
        '{"ids": ["x"], "assistant": "1"}',
        '{"ids": [[1], [2]], "assistant": "11"}',
        '{"ids": [1, 2, 3], "assistant": "01"}',
        '{"ids": [1, 200], "assistant": "01"}',
        '{"ids": [1, -2], "assistant": "01"}',
        '{"ids": [99999999999], "assistant": "1"}',
        '{"ids": [1.7], "assistant": "1"}',
        '{"ids": [true], "assistant": "1"}',
        '{"ids": [1, 2], "assistant": [0, 1]}',
        '{"ids": [1, 2], "assistant": "ua"}',
        '{"ids": [1], "assistant": "1", "temperature": NaN}',
        '{"ids": [1], "assistant": "1", "temperature": -1}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"ids": [1], "assistant": "1"}) + "\n" + line + "\n")
    with pytest.raises(DFlashError, match=r"bad\.jsonl, line 2"):
        read_conversations(path, vocabulary=96)


def test_a_missing_or_broken_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="There is no file"):
        read_conversations(tmp_path / "none.jsonl")
    cut = tmp_path / "cut.jsonl.gz"
    whole = gzip.compress(b"{}" * 1000)
    for damaged in (whole[:20], whole[:10] + b"\xff" * 10 + whole[20:], b"not " + whole):
        cut.write_bytes(damaged)
        with pytest.raises(DFlashError, match="damaged"):
            read_conversations(cut)


def test_the_same_first_question_is_kept_once_and_in_order() -> None:
    first, other, again = talk(3, 4, seed=1), talk(3, 4, seed=2), talk(3, 4, seed=1)
    assert without_repeats([first, other, again]) == [first, other]


def test_the_split_is_by_question_and_the_same_every_time() -> None:
    talks = [talk(4, 6, seed=seed) for seed in range(400)]
    train, heldout = split(talks, 0.25)
    assert len(train) + len(heldout) == 400
    assert 60 < len(heldout) < 140
    longer = [conversation([*item.ids, 5], [*item.assistant, True]) for item in reversed(talks)]
    again = split(longer, 0.25)[1]
    assert {item.prompt for item in heldout} == {item.prompt for item in again}


def test_nothing_is_held_out_of_a_share_of_zero() -> None:
    assert split([talk(3, 4)], 0)[1] == []


def test_a_loop_loses_its_supervision_and_keeps_its_tokens() -> None:
    phrase = list(range(10))
    ids = [50, 51, *phrase, *phrase, *phrase, *phrase, 52, 53]
    item = conversation(ids, [False] * 2 + [True] * 40 + [False] + [True])
    mended = without_loops(item)
    assert mended.ids.tolist() == ids
    assert np.flatnonzero(mended.assistant).tolist() == [*range(2, 22), 43]
