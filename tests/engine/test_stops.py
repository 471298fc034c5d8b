"""Stop strings and stop tokens (reports 63 and 107)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.engine.stops import StopStrings, stop_token_ids


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """All that is shown of a text that comes in pieces, and whether it was stopped."""
    matcher = StopStrings(stops)
    shown = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.finish(), False


def cut(text: str, sizes: list[int]) -> list[str]:
    """`text` in pieces of these sizes, the last size repeated."""
    pieces = []
    while text:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def first_match(stops: list[str], text: str) -> tuple[str, bool]:
    """The specification: read character by character, stop at the first that completes a stop."""
    for end in range(len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


few_letters = st.text("ab", max_size=24)
some_stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
some_sizes = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@given(some_stops, few_letters, some_sizes)
def test_the_pieces_do_not_matter(stops: list[str], text: str, sizes: list[int]) -> None:
    assert run(stops, cut(text, sizes)) == first_match(stops, text)


@pytest.mark.parametrize("offset", range(1, len("one 👩‍👧 END two")))
def test_a_stop_string_split_at_any_offset_is_met_and_not_shown(offset: int) -> None:
    text = "one 👩‍👧 END two"
    assert run(["👩‍👧 END"], [text[:offset], text[offset:]]) == ("one ", True)


def test_text_is_shown_as_soon_as_no_stop_string_can_begin_in_it() -> None:
    matcher = StopStrings(["\n\nUser:", "###"])
    assert matcher.push("Hello.\n") == ("Hello.", False)
    assert matcher.push("\nUse") == ("", False)
    assert matcher.push("d #") == ("\n\nUsed ", False)
    assert matcher.push("1") == ("#1", False)


def test_a_partial_stop_string_at_the_end_of_the_text_is_shown() -> None:
    assert run(["###"], ["a#", "#"]) == ("a##", False)


def test_of_two_stop_strings_in_the_text_the_first_one_wins() -> None:
    assert run(["two", "one"], ["zero one two"]) == ("zero ", True)


def test_the_shorter_of_two_that_begin_alike_wins_since_it_is_complete_first() -> None:
    assert run(["abc", "ab"], ["xabc"]) == ("x", True)


def test_one_that_is_complete_ends_the_text_though_a_longer_one_began_before_it() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == ("xa", True)


def test_the_longer_of_two_that_end_alike_wins() -> None:
    assert run(["bc", "abc"], ["x", "a", "b", "c"]) == ("x", True)


def test_a_stop_string_that_overlaps_a_failed_beginning_of_itself_is_met() -> None:
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", True)


def test_nothing_is_shown_after_a_stop_string() -> None:
    matcher = StopStrings(["."])
    assert matcher.push("a. b") == ("a", True)
    assert matcher.found
    assert matcher.push("c") == ("", True)
    assert matcher.finish() == ""


def test_without_stop_strings_nothing_is_held_back() -> None:
    matcher = StopStrings([])
    assert matcher.push("text") == ("text", False)
    assert not matcher.found


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


def test_only_what_is_held_back_is_looked_at_again() -> None:
    matcher = StopStrings(["<end>"])
    for _ in range(1000):
        assert matcher.push("some text <en") == ("some text ", False)
        assert matcher.push("!") == ("<en!", False)


@pytest.mark.parametrize(
    ("tokenizer", "config", "generation_config", "expected"),
    [
        ({}, {"eos_token_id": 5}, {}, {5}),
        ({}, {"eos_token_id": [5, 6]}, {}, {5, 6}),
        ({}, {}, {"eos_token_id": [7]}, {7}),
        ({"eos_token_id": 2}, {}, {}, {2}),
        ({"eos_token_id": 2, "eos_token_ids": {2, 3}}, {}, {}, {2, 3}),
        ({"eos_token_ids": 4}, {}, {}, {4}),
        ({}, {"text_config": {"eos_token_id": 8}}, {}, {8}),
        ({"eos_token_id": None}, {"eos_token_id": None, "text_config": None}, {}, set()),
        (
            {"eos_token_id": 0, "eos_token_ids": {1}},
            {"eos_token_id": 2, "text_config": {"eos_token_id": [3]}},
            {"eos_token_id": [4, 5]},
            {0, 1, 2, 3, 4, 5},
        ),
    ],
    ids=[
        "config",
        "config, a list",
        "generation config alone",
        "tokenizer alone",
        "mlx-lm's wrapper",
        "a Hugging Face tokenizer's one id by the plural name",
        "nested text config",
        "nowhere",
        "everywhere, and all differ",
    ],
)
def test_the_stop_tokens_are_the_union_of_all_files(
    tokenizer: dict[str, Any],
    config: dict[str, Any],
    generation_config: dict[str, Any],
    expected: set[int],
) -> None:
    assert stop_token_ids(SimpleNamespace(**tokenizer), config, generation_config) == expected
