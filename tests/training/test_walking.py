"""Walked acceptance: what the engine serves, round for round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_mlx.drafter import Drafter
from dflash_mlx.training.conversations import conversation
from dflash_mlx.training.walking import Acceptance, Walker
from tests.training.conftest import Lesson
from tests.training.tiny import served

LIMIT = 50


@pytest.fixture
def drafter(lesson: Lesson) -> Drafter:
    """Half way through the lesson: rounds accept anything from nothing to all."""
    return lesson.drafter(lesson.half)


@pytest.mark.parametrize("rows", [8, 5, 2])
@pytest.mark.parametrize("prompt", [[5, 9, 11, 60, 2], [60, 2]])
def test_walked_is_served(lesson: Lesson, drafter: Drafter, prompt: list[int], rows: int) -> None:
    accepted, answer = served(lesson.target, drafter, prompt, LIMIT, rows)
    item = conversation(prompt + answer, [False] * len(prompt) + [True] * LIMIT)
    assert Walker(lesson.target, drafter, frozenset(), rows).walk(item).accepted == accepted


def test_the_lesson_is_worth_walking(lesson: Lesson, drafter: Drafter) -> None:
    """Else the equality above would say little."""
    accepted, _ = served(lesson.target, drafter, lesson.prompt, LIMIT)
    assert len(set(accepted)) >= 4


@pytest.mark.parametrize("length", [21, 26, 31, 40])
def test_an_answer_that_stops_is_walked_as_it_is_served(
    lesson: Lesson, drafter: Drafter, length: int
) -> None:
    """Drafts beyond the stop do not count, and no limit shortens the last blocks."""
    stop = lesson.answer[length]
    accepted, answer = served(lesson.target, drafter, lesson.prompt, LIMIT, stop=stop)
    item = conversation(lesson.prompt + answer, [False] * 5 + [True] * len(answer))
    assert Walker(lesson.target, drafter, frozenset([stop])).walk(item).accepted == accepted


def test_every_turn_of_a_conversation_is_walked(lesson: Lesson, drafter: Drafter) -> None:
    first, answer = served(lesson.target, drafter, lesson.prompt, 20)
    later = [*lesson.prompt, *answer, 8, 9]
    second, reply = served(lesson.target, drafter, later, 20)
    flags = [False] * 5 + [True] * 20 + [False] * 2 + [True] * 20
    walked = Walker(lesson.target, drafter, frozenset()).walk(conversation(later + reply, flags))
    assert walked.accepted == first + second


def test_a_draft_vocabulary_is_walked_as_it_is_served(lesson: Lesson) -> None:
    drafter = lesson.drafter(lesson.whole)
    ids = tuple(sorted(set(lesson.answer[:40])))
    accepted, answer = served(lesson.target, drafter, lesson.prompt, LIMIT, vocabulary=ids)
    drafter.config = replace(drafter.config, draft_vocab=ids)
    item = conversation(lesson.prompt + answer, [False] * 5 + [True] * LIMIT)
    assert Walker(lesson.target, drafter, frozenset()).walk(item).accepted == accepted
    assert 0 < sum(accepted) < sum(served(lesson.target, drafter, lesson.prompt, LIMIT)[0])


def test_figures_are_pooled_over_rounds() -> None:
    total = Acceptance()
    total.add(Acceptance([7, 7], [7, 7], [7] * 14))
    total.add(Acceptance([0] * 8, [7] * 8, [0] * 8))
    assert total.length == pytest.approx(1 + 14 / 10)
    assert total.by_position == pytest.approx([0.2] * 7)
    assert total.anchor_accept == pytest.approx(1 + 98 / 22)


def test_the_mean_over_anchors_overstates_acceptance() -> None:
    """Half of the places at 8 and half at 1 read 4.5 and serve 1.8 (dflash.md, section 6)."""
    rounds = Acceptance([7] + [0] * 8, [7] * 9, [7] * 8 + [0] * 8)
    assert rounds.anchor_accept == 4.5
    assert rounds.length == pytest.approx(1.8, abs=0.05)


def test_nothing_walked_accepts_nothing() -> None:
    assert (Acceptance().length, Acceptance().by_position) == (1.0, [])
