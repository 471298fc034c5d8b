"""Copied drafts: the longest repetition that ends the text, and what followed it before."""

from __future__ import annotations

import random
from typing import Any

from dflash_mlx.engine.copies import Copies


def indexed(*tokens: int) -> Copies:
    """A text of these tokens."""
    copies = Copies()
    copies.extend(tokens)
    return copies


def test_new_text_has_no_match() -> None:
    copies = Copies()
    for token in range(100):
        copies.extend([token])
        assert copies.match == 0


def test_one_token_is_no_match_and_two_are() -> None:
    assert indexed(1, 2, 3, 4, 5, 9, 4).match == 0
    assert indexed(1, 2, 3, 4, 5, 9, 3, 4).match == 2


def test_what_followed_a_longer_match_is_preferred_to_what_followed_last() -> None:
    copies = indexed(1, 2, 3, 4, 50, 8, 3, 4, 60, 1, 2, 3, 4)

    assert (copies.match, copies.drafts(1)) == (4, [50])


def test_a_short_match_that_goes_on_gives_way_to_a_longer_one() -> None:
    copies = indexed(1, 2, 3, 4, 50, 7, 2, 3, 4, 60, 1, 2)
    assert (copies.match, copies.drafts(1)) == (2, [3])
    copies = indexed(9, 1, 2, 3, 50, 1, 2, 3, 60, 9, 1, 2)
    assert (copies.match, copies.drafts(2)) == (3, [3, 50])


def test_a_match_grows_as_the_text_goes_on_as_before_and_ends_where_it_does_not() -> None:
    copies = indexed(*range(20), 99, *range(4, 8))
    assert (copies.match, copies.drafts(3)) == (4, [8, 9, 10])

    copies.extend([8, 9])
    assert (copies.match, copies.drafts(3)) == (6, [10, 11, 12])

    copies.extend([77])
    assert copies.match == 0


def test_a_match_is_counted_back_beyond_the_run_that_finds_it() -> None:
    assert indexed(*range(20), *range(100, 120), *range(20)).match == 20


def test_the_count_ends_at_64() -> None:
    copies = indexed(*range(500), *range(500))

    assert (copies.match, copies.drafts(2)) == (64, [0, 1])  # itself, once more


def test_the_latest_occurrence_is_copied() -> None:
    copies = indexed(1, 2, 3, 4, 50, 1, 2, 3, 4, 60, 1, 2, 3, 4)

    assert copies.drafts(1) == [60]


def test_a_text_that_repeats_itself_is_copied_beyond_its_end() -> None:
    copies = indexed(*[7, 8, 9] * 3)

    assert copies.drafts(7) == [7, 8, 9, 7, 8, 9, 7]


def test_text_that_was_taken_back_is_not_copied() -> None:
    copies = indexed(*range(10), *range(50, 60))
    copies.follow([*range(10), 1, 2, 3, 4])
    assert (copies.match, copies.drafts(2)) == (4, [5, 6])

    copies.follow([50, 51, 52, 53])
    assert copies.match == 0

    copies.extend([60, 50, 51, 52, 53])
    assert (copies.match, copies.drafts(1)) == (4, [60])


def test_text_that_was_taken_back_fills_no_memory() -> None:
    """A conversation may be retried all day."""
    copies = indexed(*range(10))
    for retry in range(1, 6):
        copies.follow([*range(10), *range(100 * retry, 100 * retry + 50)])

    assert len(copies._ends) == 59 + 58 + 57, "runs of 2, 3 and 4 tokens"


def test_text_that_was_taken_back_hides_nothing_that_it_quoted() -> None:
    copies = indexed(*range(10), *range(6))
    copies.follow([*range(10), 77, *range(6)])

    assert (copies.match, copies.drafts(2)) == (6, [6, 7])


def test_to_follow_a_text_is_to_have_been_told_it_token_by_token() -> None:
    chance = random.Random(3)
    followed = Copies()
    text: list[int] = []
    for _ in range(200):
        del text[len(text) - min(len(text), chance.choice([0, 0, 1, 7, 40])) :]
        text += chance.choices(range(3), k=chance.randrange(1, 12))
        followed.follow(text)
        if followed.match:
            source = followed._source
            assert source < len(text)
            span = min(followed.match, source)
            assert span >= 2
            assert text[source - span : source] == text[len(text) - span :]


class Counting(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def test_a_token_costs_the_same_in_a_long_context() -> None:
    reads = []
    for size in (1_000, 20_000):
        copies = indexed(*(i * 7919 % 50_000 for i in range(size)))
        copies._tokens = counting = Counting(copies._tokens)
        copies.extend([*range(60_000, 60_500), *range(60_000, 60_500)])
        reads.append(counting.reads)

    assert reads[0] == reads[1] < 4 * 1000
