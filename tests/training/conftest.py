"""A drafter that learns one answer by heart: trained once, looked at half way and at the end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.target.model import Target
from dflash_mlx.training.conversations import conversation
from dflash_mlx.training.features import OnlineFeatures
from dflash_mlx.training.initial import Weights, nested, random_weights
from dflash_mlx.training.settings import RunSettings
from dflash_mlx.training.trainer import Trainer
from tests.training.tiny import answer_of, tiny_config, tiny_target

STEPS, HALF = 100, 45


@dataclass
class Lesson:
    """A prompt, the target's answer to it, and the weights of a drafter that learnt it."""

    target: Target
    prompt: list[int]
    answer: list[int]
    half: Weights
    whole: Weights

    def drafter(self, weights: Weights) -> Drafter:
        """The drafter with some of the weights."""
        made = Drafter(lesson_config())
        made.update(nested(weights))
        return made


def lesson_config() -> DrafterConfig:
    """One layer, two heads."""
    return tiny_config(
        num_layers=1,
        layer_types=("full_attention",),
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=64,
    )


@pytest.fixture(scope="session")
def lesson() -> Lesson:
    """100 steps on one answer of 65 tokens."""
    target, prompt = tiny_target(), [5, 9, 11, 60, 2]
    answer = answer_of(target, prompt, 65)
    item = conversation(prompt + answer, [False] * 5 + [True] * 65)
    drafter = Drafter(lesson_config())
    settings = RunSettings(
        steps=STEPS, anchors=64, batch_tokens=96, learning_rate=1.5e-2, warmup=0.1
    )
    trainer = Trainer(
        target,
        drafter,
        random_weights(drafter, target, 0),
        [item],
        OnlineFeatures(target),
        settings,
    )
    half: Weights = {}
    for step in range(STEPS):
        if step == HALF:
            half = trainer.weights
        trainer.step()
    return Lesson(target, prompt, answer, half, trainer.weights)
