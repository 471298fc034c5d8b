"""Loops: eight tokens in a row at their third coming, not overlapping."""

from __future__ import annotations

from dflash_mlx.training.loops import loop_start

PHRASE = list(range(100, 110))


def test_an_answer_without_repetition_has_no_loop() -> None:
    assert loop_start(range(500)) is None


def test_a_phrase_said_twice_is_no_loop() -> None:
    assert loop_start([*PHRASE, 1, *PHRASE, 2, 3]) is None


def test_the_loop_begins_where_the_phrase_comes_for_the_third_time() -> None:
    tokens = [7, *PHRASE, 1, *PHRASE, 2, *PHRASE, 3]
    assert loop_start(tokens) == 1 + 2 * 11


def test_a_rule_of_dashes_counts_as_often_as_it_holds_eight() -> None:
    assert loop_start([9] * 23) is None
    assert loop_start([9] * 24) == 16


def test_a_short_answer_has_no_loop() -> None:
    assert loop_start([1, 1, 1]) is None
