"""DFlash 2: one made of a DFlash drafter drafts alike; its selector learns, and is walked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.drafter.config import SecondConfig
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.errors import UsageError
from dflash_mlx.training.checkpoint import write_drafter
from dflash_mlx.training.conversations import conversation
from dflash_mlx.training.features import OnlineFeatures
from dflash_mlx.training.initial import Weights, flat, nested, random_weights
from dflash_mlx.training.run import Run
from dflash_mlx.training.second import Candidates, is_second, scores, selector_loss
from dflash_mlx.training.settings import RunSettings
from dflash_mlx.training.trainer import StepReport, Trainer
from dflash_mlx.training.walking import Walker
from tests.tiny_folders import tiny_pair
from tests.training.conftest import Lesson, lesson_config
from tests.training.test_run import CORPUS, SETTINGS, begun, train
from tests.training.tiny import VOCABULARY, served

SECOND = SecondConfig(kernel_size=2, group_size=16, rank=8, top_k=4)


def second_drafter() -> SecondDrafter:
    return SecondDrafter(replace(lesson_config(), second=SECOND))


def upgraded(lesson: Lesson, weights: Weights) -> SecondDrafter:
    """A DFlash 2 that begins as the lesson's drafter."""
    drafter = second_drafter()
    first = random_weights(drafter, lesson.target, 0)
    drafter.update(nested({n: w for n, w in first.items() if is_second(n)} | weights))
    return drafter


def test_a_drafter_that_becomes_a_dflash_2_drafts_the_same(lesson: Lesson) -> None:
    one = served(lesson.target, lesson.drafter(lesson.half), lesson.prompt, 40)
    two = served(lesson.target, upgraded(lesson, lesson.half), lesson.prompt, 40)
    assert one == two


def test_all_parts_of_a_dflash_2_learn(lesson: Lesson) -> None:
    drafter = upgraded(lesson, lesson.half)
    item = conversation(lesson.prompt + lesson.answer, [False] * 5 + [True] * 65)
    settings = RunSettings(steps=3, anchors=16, batch_tokens=96, learning_rate=5e-3, warmup=0.0)
    before = flat(drafter.parameters())
    trainer = Trainer(
        lesson.target, drafter, before, [item], OnlineFeatures(lesson.target), settings
    )
    told = [trainer.step().selector_loss for _ in range(3)]
    assert sum(chosen or 0 for chosen in told) > 0
    for name, weight in trainer.weights.items():
        assert not mx.array_equal(weight, before[name]), name


def test_a_dflash_2_is_walked_as_it_is_served(lesson: Lesson) -> None:
    drafter = upgraded(lesson, lesson.half)
    weights = flat(drafter.parameters())
    for name in weights:  # parts that do something, so that the walk must follow them
        if is_second(name):
            noise = mx.random.normal(weights[name].shape, key=mx.random.key(3))
            weights[name] = weights[name] + 0.2 * noise
    drafter.update(nested(weights))
    accepted, answer = served(lesson.target, drafter, lesson.prompt, 40)
    item = conversation(lesson.prompt + answer, [False] * 5 + [True] * 40)
    assert Walker(lesson.target, drafter, frozenset()).walk(item).accepted == accepted
    assert len(set(accepted)) > 1


def test_scores_are_those_that_the_engine_walks_by() -> None:
    drafter = second_drafter()
    selector = drafter.candidate_selector
    keys = iter(mx.random.split(mx.random.key(0), 8))
    selector.predecessor_codebook = mx.random.normal((VOCABULARY, 8), key=next(keys))
    selector.successor_codebook = mx.random.normal((VOCABULARY, 8), key=next(keys))
    hidden = mx.random.normal((3, 32), key=next(keys))
    logits = mx.random.normal((3, VOCABULARY), key=next(keys))
    seen: list[tuple[mx.array, mx.array]] = []

    def pick(row: int, ids: mx.array, given: mx.array) -> mx.array:
        seen.append((ids[0], given[0]))
        return ids[0, mx.argmax(given[0])][None]

    path = selector.walk(hidden, 7, logits, pick)
    previous = mx.concatenate([mx.array([7]), path[:-1]])
    for row, (ids, given) in enumerate(seen):
        own = mx.take_along_axis(logits[row], ids, axis=-1)
        ours = scores(selector, hidden[row], previous[row], Candidates(ids, own, own))
        assert mx.allclose(ours, given, atol=1e-5)


def test_the_selectors_loss_is_the_entropy_among_candidates() -> None:
    selector = second_drafter().candidate_selector
    ids = mx.array([[3, 5, 9, 11], [3, 5, 9, 11]])
    logits = mx.array([[1.0, 2.0, 0.0, -1.0], [1.0, 2.0, 0.0, -1.0]])
    candidates = Candidates(ids, logits, mx.array([0.5, 2.0]))
    hidden, previous = mx.ones((2, 32)), mx.array([1, 2])
    known = selector_loss(selector, hidden, previous, mx.array([5, 5]), candidates)
    entropy = np.log(np.exp([1.0, 2.0, 0.0, -1.0]).sum()) - 2.0
    assert known.item() == pytest.approx(2.5 * entropy, rel=1e-5)
    absent = selector_loss(selector, hidden, previous, mx.array([5, 4]), candidates)
    assert absent.item() == pytest.approx(0.5 * entropy, rel=1e-5)


def test_a_run_makes_a_dflash_2_of_a_drafter_and_it_loads(tmp_path: Path) -> None:
    train(begun(tmp_path / "first"))
    best = tmp_path / "first" / "best"
    settings = replace(SETTINGS, init=str(best), dflash2=True, selector_rank=6)
    run = Run(tiny_pair(), settings, tmp_path / "second", CORPUS, "tiny")
    before = run.begin().weights
    for name, weight in flat(load_drafter(best).parameters()).items():
        assert mx.array_equal(before[name], weight)
    train(run)
    made = load_drafter(tmp_path / "second" / "best")
    assert isinstance(made, SecondDrafter)
    assert made.candidate_selector.successor_codebook.shape[1] == 6
    assert isinstance(load_drafter(best), Drafter)


def test_a_dflash_2_made_of_a_drafter_is_resumed_to_the_last_bit(tmp_path: Path) -> None:
    train(begun(tmp_path / "first", replace(SETTINGS, steps=1)))
    settings = replace(SETTINGS, init=str(tmp_path / "first" / "best"), dflash2=True, eval_every=0)
    whole = train(begun(tmp_path / "whole", settings))
    stopped = train(begun(tmp_path / "parts", settings), stop_behind=2)
    resumed = train(begun(tmp_path / "parts", settings))
    figures = [
        [(r.loss, r.selector_loss, r.gradient_norm) for r in reports if isinstance(r, StepReport)]
        for reports in (whole, [*stopped, *resumed])
    ]
    assert figures[0] == figures[1]
    assert list(begun(tmp_path / "third", settings).begin().weights) == list(
        begun(tmp_path / "whole", settings).begin().weights
    )


def test_a_head_of_fewer_tokens_than_candidates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--frequent-tokens must be 8 or more"):
        begun(tmp_path, replace(SETTINGS, dflash2=True, frequent_tokens=7))


def test_a_new_dflash_2_is_saved_as_one(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", replace(SETTINGS, dflash2=True))
    (tmp_path / "drafter").mkdir()
    write_drafter(tmp_path / "drafter", run.config, run.begin().weights)
    assert isinstance(load_drafter(tmp_path / "drafter"), SecondDrafter)
