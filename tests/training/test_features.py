"""Features: the same online, cached, and in the engine, whichever layers are tapped."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.errors import DFlashError
from dflash_mlx.target.model import Target
from dflash_mlx.training import features as module
from dflash_mlx.training.blocks import Batch, make_batch
from dflash_mlx.training.features import CachedFeatures, OnlineFeatures
from tests.training.tiny import HIDDEN, talk, tiny_config, tiny_drafter, tiny_target

TALKS = [talk(4, n, seed=n) for n in (20, 7, 33, 12, 50)]


def batch(*rows: int) -> Batch:
    return make_batch(TALKS, list(rows), [np.array([4], np.int32)] * len(rows), 8)


class Recorder(BlockDrafting):
    """Drafting that keeps the taps which the engine gives it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, tiny_drafter(tiny_config(target_layer_ids=target.tap_ids)))
        self.taps: list[mx.array] = []

    def extend(self, taps: mx.array) -> None:
        """Keep the taps, and go on as ever."""
        self.taps.append(taps)
        super().extend(taps)


@pytest.mark.parametrize("taps", [(0, 2), (3,), (0, 1, 2, 3), (2, 0)])
def test_training_sees_the_taps_that_the_engine_gives_its_drafter(taps: tuple[int, ...]) -> None:
    target = tiny_target(taps)
    recorder = Recorder(target)
    context = Context(target, recorder, chunk=7)
    context.prefill(TALKS[2].ids.tolist(), True)
    served = mx.concatenate(recorder.taps, axis=1)
    trained = OnlineFeatures(target)(batch(2))[:, : len(TALKS[2])]
    assert trained.shape == served.shape == (1, 37, len(taps) * HIDDEN)
    assert mx.allclose(trained, served, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", range(4))
def test_a_tap_is_the_output_of_its_layer(layer: int) -> None:
    """Layer i's output is layer i+1's input: tap the truncated model's last layer and compare."""
    target = tiny_target((layer,))
    tapped = OnlineFeatures(target)(batch(0))
    body = target.body
    hidden = body.embed_tokens(mx.array(batch(0).tokens))
    for number in range(layer + 1):
        hidden = body.layers[number](hidden, "causal", None)
    assert mx.allclose(tapped, hidden, rtol=1e-4, atol=1e-4)


def test_a_long_conversation_in_chunks_is_one_pass() -> None:
    target, item = tiny_target(), talk(4, 300)
    long = make_batch([item], [0], [np.array([4], np.int32)], 8)
    _, whole = target.forward(mx.array(long.tokens), target.make_cache())
    assert whole is not None
    assert mx.allclose(OnlineFeatures(target)(long), whole, rtol=1e-4, atol=1e-4)


def cached(folder: Path, target: Target) -> CachedFeatures:
    features = CachedFeatures(folder, TALKS, target)
    for _ in features.build("tiny", batch_tokens=64):
        pass
    return features


def test_cached_features_are_the_online_ones_in_float16(tmp_path: Path) -> None:
    target = tiny_target()
    kept, fresh = cached(tmp_path, target)(batch(3, 0, 4)), OnlineFeatures(target)(batch(3, 0, 4))
    for i, row in enumerate((3, 0, 4)):
        length = len(TALKS[row])
        expected = fresh[i, :length].astype(mx.float16)
        assert mx.allclose(kept[i, :length], expected, rtol=2e-3, atol=2e-3)


def test_the_size_is_told_before_anything_is_written(tmp_path: Path) -> None:
    features = CachedFeatures(tmp_path, TALKS, tiny_target())
    assert not list(tmp_path.iterdir())
    told = features.nbytes
    cached(tmp_path, tiny_target())
    assert (tmp_path / "features.f16").stat().st_size == told == 2 * 2 * HIDDEN * 142


def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    target = tiny_target()
    first = CachedFeatures(tmp_path, TALKS, target).build("tiny", batch_tokens=64)
    done, total = next(first)
    first.close()
    assert 0 < done < total == 142
    rest = list(CachedFeatures(tmp_path, TALKS, target).build("tiny", batch_tokens=64))
    assert rest[0][0] > done
    assert rest[-1] == (142, 142)
    assert list(CachedFeatures(tmp_path, TALKS, target).build("tiny", batch_tokens=64)) == []


@pytest.mark.parametrize("change", ["target", "taps", "conversations"])
def test_features_of_something_else_are_made_anew(tmp_path: Path, change: str) -> None:
    cached(tmp_path, tiny_target())
    taps = (0, 1) if change == "taps" else (0, 2)
    talks = TALKS[::-1] if change == "conversations" else TALKS
    other = CachedFeatures(tmp_path, talks, tiny_target(taps))
    built = list(other.build("other" if change == "target" else "tiny", batch_tokens=64))
    assert built[-1] == (142, 142)


def test_a_torn_note_is_no_features(tmp_path: Path) -> None:
    cached(tmp_path, tiny_target())
    (tmp_path / "features.json").write_text(json.dumps({"target": "tiny"})[:9])
    assert list(CachedFeatures(tmp_path, TALKS, tiny_target()).build("tiny", batch_tokens=64))


def test_a_build_killed_at_its_beginning_leaves_nothing_to_be_mistaken(tmp_path: Path) -> None:
    """The file is overwritten first: what it held, and its note vouched for, is gone."""

    def killed(target: Target, tokens: object) -> mx.array:
        raise KeyboardInterrupt

    before = cached(tmp_path, tiny_target())(batch(0))
    with pytest.raises(KeyboardInterrupt):
        list(CachedFeatures(tmp_path, TALKS, tiny_target((0, 1)), killed).build("tiny", 64))
    assert mx.array_equal(cached(tmp_path, tiny_target())(batch(0)), before)


def test_the_space_of_the_features_that_are_replaced_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "check_space", lambda folder, needed: asked.append(needed))
    cached(tmp_path, tiny_target())
    list(CachedFeatures(tmp_path, TALKS, tiny_target((0, 1))).build("tiny", batch_tokens=64))
    told = 2 * 2 * HIDDEN * 142
    assert asked[0] == told
    assert asked[1] <= 0


def test_features_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    target = tiny_target()
    target.body.layers[0].mlp.down_proj.weight *= 1e6
    with pytest.raises(DFlashError, match="--features online"):
        cached(tmp_path, target)
