"""The training step: it learns, it is what its parts say, and it goes on as if never stopped."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.drafter import Drafter
from dflash_mlx.target.model import Target
from dflash_mlx.training.blocks import Batch
from dflash_mlx.training.conversations import Conversation, Ids, conversation
from dflash_mlx.training.features import OnlineFeatures
from dflash_mlx.training.forward import hidden_states
from dflash_mlx.training.heads import TrainingHead, frequent_tokens
from dflash_mlx.training.initial import Weights, nested, random_weights
from dflash_mlx.training.loss import Losses
from dflash_mlx.training.settings import RunSettings
from dflash_mlx.training.trainer import Clock, NotFinite, Trainer, learning_rate
from tests.training.conftest import Lesson
from tests.training.tiny import MASK, VOCABULARY, served, talk, tiny_config, tiny_target

SETTINGS = RunSettings(steps=8, anchors=6, batch_tokens=128, learning_rate=3e-3, seed=4)
TALKS = [talk(5, 30, 4, 20, seed=seed) for seed in range(6)]


def trainer(
    settings: RunSettings = SETTINGS,
    talks: list[Conversation] = TALKS,
    target: Target | None = None,
    layers: int = 1,
) -> Trainer:
    target = target or tiny_target()
    drafter = Drafter(tiny_config(num_layers=layers, layer_types=("full_attention",) * layers))
    weights = random_weights(drafter, target, settings.seed)
    return Trainer(target, drafter, weights, talks, OnlineFeatures(target), settings)


def losses(one: Trainer, steps: int) -> list[float]:
    return [one.step().loss for _ in range(steps)]


def test_one_answer_is_learnt_until_whole_blocks_are_accepted_in_the_engine(
    lesson: Lesson,
) -> None:
    drafter = lesson.drafter(lesson.whole)
    accepted, tokens = served(lesson.target, drafter, lesson.prompt, 65)
    assert tokens == lesson.answer
    assert sum(accepted) / len(accepted) + 1 >= 0.95 * 8


def test_an_untrained_drafter_guesses_worse_than_evenly() -> None:
    """Better would be a label that leaks, far worse a head that insists."""
    assert 0 < trainer().step().loss - math.log(VOCABULARY) < 3


def test_a_label_that_leaks_would_be_seen_before_anything_is_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of labels instead of masks: that is what the test above is for."""

    def leaking(batch: Batch, mask: int) -> Ids:
        anchors = np.take_along_axis(batch.tokens, batch.anchors, axis=1)[..., None]
        return np.concatenate([anchors, batch.labels], axis=-1)

    monkeypatch.setattr(Batch, "blocks", leaking)
    assert trainer().step().loss < 1


def test_two_steps_are_those_of_adamw_with_clipped_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Written out: (1 - rate decay) w - rate m' / (sqrt(v') + eps), at a rate that rises."""
    settings = replace(SETTINGS, steps=10, learning_rate=4e-3, warmup=0.4)
    one = trainer(replace(settings, clip=0.5, weight_decay=0.1))
    gradients, seen = one.gradients, list[tuple[Losses, Weights]]()

    def watched(batch: Batch, clock: Clock) -> tuple[Losses, Weights]:
        seen.append(gradients(batch, clock))
        return seen[-1]

    monkeypatch.setattr(one, "gradients", watched)
    weights = {name: np.array(array, np.float64) for name, array in one.weights.items()}
    first, second = ({name: 0 * array for name, array in weights.items()} for _ in "mv")
    for number, rate in ((1, 1e-3), (2, 2e-3)):
        report = one.step()
        sums, found = seen[-1]
        mean = {name: np.array(g, np.float64) / sums.weight for name, g in found.items()}
        norm = math.sqrt(sum((g**2).sum() for g in mean.values()))
        assert norm > 0.5
        assert report.gradient_norm == pytest.approx(norm, rel=1e-5)
        assert report.learning_rate == pytest.approx(rate)
        for name, gradient in mean.items():
            clipped = gradient * 0.5 / norm
            first[name] = 0.9 * first[name] + 0.1 * clipped
            second[name] = 0.999 * second[name] + 0.001 * clipped**2
            m, v = first[name] / (1 - 0.9**number), second[name] / (1 - 0.999**number)
            weights[name] = weights[name] * (1 - rate * 0.1) - rate * m / (np.sqrt(v) + 1e-8)
    for name, weight in weights.items():
        np.testing.assert_allclose(one.weights[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_alpha_is_the_least_chance_of_a_row() -> None:
    """At 1 every row is taken for right, so the row with n behind and with it weighs n."""
    one = trainer(replace(SETTINGS, alpha=1.0))
    batch = next(one._batches)
    rows = batch.valid.sum(axis=-1)
    assert one.gradients(batch, Clock())[0].weight == (rows * (rows + 1) / 2).sum()


def test_weights_too_large_for_the_passes_are_not_kept() -> None:
    target = tiny_target()
    target.model.set_dtype(mx.float16)
    one = trainer(replace(SETTINGS, learning_rate=1e6, warmup=0.0), target=target)
    one.drafter.set_dtype(mx.float16)
    before = dict(one.weights)
    with pytest.raises(NotFinite, match=r"Step 1: a weight .*float16"):
        one.step()
    assert one.step_number == 0
    assert all(mx.array_equal(one.weights[name], before[name]) for name in before)


def test_the_loss_falls() -> None:
    one = trainer(replace(SETTINGS, steps=12, learning_rate=1e-2))
    fell = losses(one, 12)
    assert sum(fell[-3:]) < 0.9 * sum(fell[:3])


def test_a_run_that_was_stopped_goes_on_with_the_same_losses() -> None:
    whole = trainer()
    expected = losses(whole, 8)
    stopped = trainer()
    losses(stopped, 3)
    resumed = trainer()
    resumed.resume(stopped.checkpoint())
    assert losses(resumed, 5) == expected[3:]
    for name, weight in whole.weights.items():
        assert mx.array_equal(weight, resumed.weights[name])


def test_a_step_follows_the_gradient_of_the_mean_loss() -> None:
    """Against automatic differentiation of sum(w CE) / sum(w), written down once more."""
    one = trainer(replace(SETTINGS, loss="decay", gamma=3.0, anchors=60, batch_tokens=64))
    batch = next(one._schedule.batches())
    blocks, anchors = mx.array(batch.blocks(MASK)), mx.array(batch.anchors)
    taps = OnlineFeatures(one.target)(batch)
    labels, valid = mx.array(batch.labels), mx.array(batch.valid)

    def mean(weights: Weights) -> mx.array:
        one.drafter.update(nested(weights))
        hidden = hidden_states(one.drafter, taps, one.target.embed(blocks), anchors)[:, :, 1:]
        logits = one.target.head(hidden)
        chosen = mx.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        share = mx.exp(-mx.arange(7) / 3.0) * valid
        return ((mx.logsumexp(logits, axis=-1) - chosen) * share).sum() / share.sum()

    loss, gradients = mx.value_and_grad(mean)(one.weights)
    norm = mx.sqrt(sum(gradient.square().sum() for gradient in gradients.values()))
    report = one.step()
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    assert report.gradient_norm == pytest.approx(norm.item(), rel=1e-4)


def test_two_small_batches_of_a_step_are_one_large_one() -> None:
    even = [talk(5, 40, seed=seed) for seed in range(4)]
    large = trainer(replace(SETTINGS, batch_tokens=256, anchors=60), even)
    small = trainer(replace(SETTINGS, batch_tokens=128, anchors=60, accumulate=2), even)
    one, two = large.step(), small.step()
    assert one.anchors == two.anchors == 4 * 39
    assert one.loss == pytest.approx(two.loss, rel=1e-5)
    assert one.gradient_norm == pytest.approx(two.gradient_norm, rel=1e-4)


def test_what_the_user_says_after_the_anchor_gives_no_gradient() -> None:
    """Only supervised tokens are labels: other tokens behind the last anchor change nothing."""
    item = talk(4, 20, 12)
    other = replace(item, ids=np.where(np.arange(36) >= 24, 7, item.ids).astype(np.int32))
    one, two = (trainer(replace(SETTINGS, anchors=60), [each]).step() for each in (item, other))
    assert (one.loss, one.gradient_norm) == (two.loss, two.gradient_norm)


def test_a_loss_that_is_no_number_stops_before_it_does_harm() -> None:
    one = trainer()
    losses(one, 2)
    before = dict(one.weights)
    one.weights["fc.weight"] = mx.full(one.weights["fc.weight"].shape, math.nan)
    with pytest.raises(NotFinite, match="Step 3"):
        one.step()
    for name in before.keys() - {"fc.weight"}:
        assert mx.array_equal(one.weights[name], before[name])
    assert one.step_number == 2


def test_a_batch_with_a_row_of_padding_only_stays_finite() -> None:
    """A conversation with one anchor beside one with many: the rest of its row is padding."""
    talks = [talk(60, 2, seed=1), talk(4, 58, seed=2)]
    report = trainer(replace(SETTINGS, anchors=40), talks).step()
    assert math.isfinite(report.loss)
    assert math.isfinite(report.gradient_norm)
    assert report.anchors == 41


@pytest.mark.parametrize("loss", ["dpace", "decay"])
def test_both_losses_train(loss: Literal["dpace", "decay"]) -> None:
    one = trainer(replace(SETTINGS, steps=6, loss=loss))
    fell = losses(one, 6)
    assert fell[-1] < fell[0]


def test_the_head_over_frequent_tokens_serves_the_first_share_of_the_steps() -> None:
    one = trainer(replace(SETTINGS, steps=4, frequent_tokens=20, frequent_share=0.5))
    kinds = []
    for _ in range(4):
        kinds.append(one.head(mx.zeros((1, 32))).shape[-1])
        one.step()
    assert kinds == [20, 20, VOCABULARY, VOCABULARY]


def test_frequent_tokens_are_those_that_the_assistant_writes() -> None:
    item = conversation([1, 1, 1, 5, 6, 6, 7, 6], [False] * 3 + [True] * 5)
    assert frequent_tokens([item], 2, VOCABULARY).tolist() == [5, 6]


@pytest.mark.parametrize("tied", [True, False])
def test_the_small_head_gives_the_whole_heads_logits(tied: bool) -> None:
    target = tiny_target(tied=tied)
    drafter = Drafter(tiny_config(output_multiplier=0.5, logit_softcap=4.0))
    tokens = np.array([3, 17, 44], np.int32)
    hidden = mx.random.normal((2, 5, 32), key=mx.random.key(0))
    whole, small = TrainingHead(target, drafter), TrainingHead(target, drafter, tokens)
    assert mx.allclose(whole(hidden)[..., mx.array(tokens)], small(hidden), atol=1e-5)
    assert small.places(np.array([17, 18], np.int32)).tolist() == [1, -1]


def test_the_learning_rate_rises_then_falls_to_nothing() -> None:
    rates = [learning_rate(step, 100, 2.0, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[10] == pytest.approx(2.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.01


def test_masters_stay_float32_where_passes_compute_in_bfloat16() -> None:
    target = tiny_target()
    target.model.set_dtype(mx.bfloat16)
    one = trainer(target=target)
    one.drafter.set_dtype(mx.bfloat16)
    first = losses(one, 3)
    assert all(math.isfinite(loss) for loss in first)
    assert {array.dtype for array in one.weights.values()} == {mx.float32}
    assert one.trained().dtype == mx.bfloat16
