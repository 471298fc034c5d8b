"""A reply that repeats itself is noticed; what only looks like it is not."""

from __future__ import annotations

import pytest

from dflash_mlx.chat.repetition import RepetitionWatch, repeated_span

SENTENCE = "The same words come again. "


def test_a_sentence_said_eight_times_is_noticed_at_the_eighth() -> None:
    assert repeated_span("It began well. " + SENTENCE * 7) is None
    assert repeated_span("It began well. " + SENTENCE * 8) == SENTENCE


@pytest.mark.parametrize("cut", [0, 5, 20])
def test_wherever_in_the_span_the_text_ends(cut: int) -> None:
    text = SENTENCE * 9
    assert len(repeated_span(text[: len(text) - cut]) or "") == len(SENTENCE)


@pytest.mark.parametrize(
    "text",
    [
        "1000000000",
        "-" * 79,
        "ha " * 30,
        "| a | b |\n|" + "---|" * 20,
        "\n".join(f"{n}. item" for n in range(100)),
        "x = [" + "0, " * 60,
    ],
)
def test_short_repetitions_are_part_of_the_language(text: str) -> None:
    assert repeated_span(text) is None


def test_a_single_letter_for_ever_is_noticed() -> None:
    assert repeated_span("x" * 200) == "x"


def test_a_span_of_several_paragraphs_is_noticed() -> None:
    span = "".join(f"Paragraph {n} of many.\n\n" for n in range(20))
    assert repeated_span(span * 8) == span


def test_the_watch_sees_the_same_however_the_text_is_cut() -> None:
    watch, text = RepetitionWatch(), "Before. " + SENTENCE * 8
    found = [watch.push(text[i : i + 5]) for i in range(0, len(text), 5)]
    assert found[-1] is not None
    assert found[:-2] == [None] * (len(found) - 2)
