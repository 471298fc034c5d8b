"""Walked acceptance: what the engine serves, round for round."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.drafter import Drafter
from dflash_mlx.drafter.config import SecondConfig
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.target.model import Target
from dflash_mlx.training.conversations import conversation
from dflash_mlx.training.walking import Acceptance, Walker
from tests.training.conftest import Lesson
from tests.training.tiny import MASK, randomize, served, tiny_config, tiny_drafter, tiny_target

LIMIT = 50
PROMPT = [60, 2]


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


@pytest.mark.parametrize("more", [0, 3])
def test_an_answer_that_stops_near_its_limit_is_walked_as_it_is_served(
    lesson: Lesson, drafter: Drafter, more: int
) -> None:
    """The limit shortened its last blocks all the same, and a short block drafts otherwise."""
    differ = 0
    for length in range(20, 40):
        stop = lesson.answer[length]
        limit = lesson.answer.index(stop) + 1 + more
        accepted, answer = served(lesson.target, drafter, lesson.prompt, limit, stop=stop)
        item = conversation(lesson.prompt + answer, [False] * 5 + [True] * len(answer))
        walker = Walker(lesson.target, drafter, frozenset([stop]))
        assert walker.walk(item, limit).accepted == accepted
        differ += walker.walk(item).accepted != accepted
    assert differ or more, "no block was shortened"


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


def target_of_few_words() -> Target:
    """A target that only says tokens 0 to 3, so that even a random drafter is right at times."""
    target = tiny_target(tied=False)
    words = target.head_module.weight[:2]
    target.head_module.weight = mx.concatenate(
        [words, -words, mx.zeros_like(target.head_module.weight[4:])]
    )
    return target


def from_the_anchor_on(second: bool) -> Drafter:
    """A random drafter of blocks of 8, whose row j is for the token at anchor + j + 1."""
    config = tiny_config(drafts_from_anchor=True)
    if not second:
        return tiny_drafter(config)
    drafter = SecondDrafter(replace(config, second=SecondConfig(2, 16, 8, 4)))
    randomize(drafter, 1)
    return drafter


@pytest.mark.parametrize(
    ("rows", "stops", "second"),
    [(9, False, False), (9, True, False), (5, False, False), (2, False, False), (9, False, True)],
)
def test_a_drafter_that_drafts_from_the_anchor_on_is_walked_as_it_is_served(
    rows: int, stops: bool, second: bool
) -> None:
    """Its blocks are a row shorter than the target's pass over them."""
    target, drafter = target_of_few_words(), from_the_anchor_on(second)
    accepted, answer = served(target, drafter, PROMPT, LIMIT, rows)
    stop = max(set(answer), key=answer.index) if stops else MASK
    if stops:
        accepted, answer = served(target, drafter, PROMPT, LIMIT, rows, stop)
    item = conversation(PROMPT + answer, [False] * len(PROMPT) + [True] * len(answer))
    own = rows == drafter.config.verified_rows
    walker = Walker(target, drafter, frozenset([stop]), None if own else rows)
    assert walker.walk(item).accepted == accepted
    assert 0 < sum(accepted) < len(answer)


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
