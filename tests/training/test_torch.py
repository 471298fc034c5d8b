"""`scripts/train-with-torch` does what the product's trainer does, to rounding.

Optional: it runs where torch is installed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.drafter import Drafter
from dflash_mlx.errors import DFlashError
from dflash_mlx.training.blocks import Batch
from dflash_mlx.training.features import OnlineFeatures, compute_taps
from dflash_mlx.training.initial import random_weights
from dflash_mlx.training.settings import RunSettings
from dflash_mlx.training.trainer import Clock, Trainer
from tests.training.tiny import (
    TARGET_CONFIG,
    VOCABULARY,
    sliding_config,
    talk,
    tiny_config,
    tiny_target,
)

pytest.importorskip("torch")

TALKS = [talk(5, 30, 4, 20, seed=seed) for seed in range(4)]
SETTINGS = RunSettings(steps=8, anchors=6, batch_tokens=192, seed=4)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "train-with-torch"
    module = ModuleType("train_with_torch")
    sys.modules[module.__name__] = module
    SourceFileLoader(module.__name__, str(path)).exec_module(module)
    return module


def make(kind: type[Trainer], settings: RunSettings, drafter: Drafter | None = None) -> Trainer:
    target, drafter = tiny_target(), drafter or Drafter(tiny_config())
    weights = random_weights(drafter, target, 0)
    return kind(target, drafter, weights, TALKS, OnlineFeatures(target), settings)


@pytest.mark.parametrize("frequent", [0, 60])
@pytest.mark.parametrize("loss", ["dpace", "decay"])
def test_loss_and_gradients_are_the_products(
    script: ModuleType, loss: Literal["dpace", "decay"], frequent: int
) -> None:
    settings = replace(SETTINGS, loss=loss, frequent_tokens=frequent)
    ours, theirs = make(Trainer, settings), make(script.TorchTrainer, settings)
    batch: Batch = next(ours._batches)
    assert len(batch.rows) > 1
    wanted, expected = ours.gradients(batch, Clock())
    got, found = theirs.gradients(batch, Clock())
    assert (got.blocks, got.accepted) == (wanted.blocks, wanted.accepted)
    assert got.blocks > 0
    assert got.mean == pytest.approx(wanted.mean, rel=1e-5)
    assert got.weight == pytest.approx(wanted.weight, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert np.abs(gradient).max() > 0, name
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=2e-4, err_msg=name)


def test_a_step_is_the_products(script: ModuleType) -> None:
    ours, theirs = make(Trainer, SETTINGS), make(script.TorchTrainer, SETTINGS)
    for _ in range(3):
        assert theirs.step().loss == pytest.approx(ours.step().loss, rel=1e-4)


def test_features_are_the_products(script: ModuleType) -> None:
    target = tiny_target()
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (3, 150)).astype(np.int32)
    wanted = np.array(compute_taps(target, tokens))
    found = np.array(script.features_with_torch()(target, tokens).astype(mx.float32))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "change", [{"attention_bias": True}, {"mlp_bias": True}, {"rope_theta": None}]
)
def test_a_target_of_another_kind_is_refused(script: ModuleType, change: dict[str, object]) -> None:
    config = {key: value for key, value in {**TARGET_CONFIG, **change}.items() if value}
    with pytest.raises(DFlashError, match="Only a Llama target"):
        script.TorchTarget(SimpleNamespace(text_config=config))


def test_the_trainer_refuses_such_a_target_too(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where features are online, it alone is asked."""
    monkeypatch.setitem(TARGET_CONFIG, "attention_bias", True)
    with pytest.raises(DFlashError, match="Only a Llama target"):
        make(script.TorchTrainer, SETTINGS)


def test_a_drafter_of_another_kind_is_refused(script: ModuleType) -> None:
    with pytest.raises(DFlashError, match="Only a plain DFlash drafter"):
        make(script.TorchTrainer, SETTINGS, Drafter(sliding_config(None)))
