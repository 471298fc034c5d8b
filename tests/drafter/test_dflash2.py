"""DFlash 2: what it adds loads whole, and its walk follows the draft before, on any target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.drafter.config import SecondConfig
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError
from tests.tiny import HIDDEN, LAYERS, MASK, TAPS, VOCABULARY, run, tiny_target

from .tiny import RAW, feed, parameters, rows, save, taps, tiny_config, tiny_drafter

SECOND = SecondConfig(kernel_size=2, group_size=8, rank=6, top_k=4)
RAW2: dict[str, Any] = RAW | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": RAW["dflash_config"] | {"selector_top_k": 4},
}


def second_drafter(**changes: Any) -> SecondDrafter:
    """A tiny random DFlash 2 drafter."""
    drafter = tiny_drafter(tiny_config(second=SECOND, **changes))
    assert isinstance(drafter, SecondDrafter)
    return drafter


def test_it_loads_and_its_dimensions_come_from_the_weights(tmp_path: Path) -> None:
    drafter = second_drafter()
    loaded = load_drafter(save(tmp_path, drafter, RAW2))
    assert loaded.config.second == SECOND
    context, block = taps(5, drafter.config), rows(8, 32, seed=2)
    ours = loaded.block(block, feed(loaded, context, []))
    assert mx.array_equal(ours, drafter.block(block, feed(drafter, context, [])))


def test_codebooks_load_under_either_name(tmp_path: Path) -> None:
    """Report 56: codebook keys with and without ".weight"."""
    drafter = second_drafter()
    save(tmp_path, drafter, RAW2)
    renamed = {
        f"{name}.weight" if name.endswith("codebook") else name: array
        for name, array in parameters(drafter).items()
    }
    mx.save_safetensors(str(tmp_path / "model"), renamed)
    assert parameters(load_drafter(tmp_path)).keys() == parameters(drafter).keys()


@pytest.mark.parametrize("part", ["attention_conv", "candidate_selector", "mlp_conv"])
def test_a_missing_part_is_named_and_nothing_loads(tmp_path: Path, part: str) -> None:
    """Report 56: a partial module set was dropped with a debug log."""
    drafter = second_drafter()
    save(tmp_path, drafter, RAW2)
    kept = {name: array for name, array in parameters(drafter).items() if part not in name}
    mx.save_safetensors(str(tmp_path / "model"), kept)
    with pytest.raises(DFlashError, match=part):
        load_drafter(tmp_path)


def test_its_tensors_tell_it_whatever_the_config_says(tmp_path: Path) -> None:
    raw = RAW2 | {"architectures": ["DFlashDraftModel"]}
    assert isinstance(load_drafter(save(tmp_path, second_drafter(), raw)), SecondDrafter)
    with pytest.raises(DFlashError, match="lacks selector_top_k"):
        load_drafter(save(tmp_path, second_drafter(), RAW))


def test_a_selector_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="candidate selector knows 64 tokens"):
        load_drafter(save(tmp_path, second_drafter(), RAW2 | {"vocab_size": 96}))


def test_it_can_be_quantized(tmp_path: Path) -> None:
    drafter = second_drafter()
    nn.quantize(drafter.layers[0].mlp_conv, group_size=32, bits=8)
    raw = RAW2 | {"quantization": {"group_size": 32, "bits": 8}}
    loaded = load_drafter(save(tmp_path, drafter, raw))
    assert isinstance(loaded.layers[0].mlp_conv.kernel_projection, nn.QuantizedLinear)


def test_the_walk_scores_each_candidate_after_the_draft_before() -> None:
    drafter = second_drafter()
    selector = drafter.candidate_selector
    hidden, logits = rows(5, 32)[0], rows(5, 64, seed=3)[0]
    first, second, project = (
        np.array(array)
        for array in (
            selector.predecessor_codebook,
            selector.successor_codebook,
            selector.hidden_projection.weight,
        )
    )
    previous, expected = 17, []
    for h, u in zip(np.array(hidden), np.array(logits), strict=True):
        scores = {b: u[b] + (first[previous] * (project @ h)) @ second[b] for b in range(64)}
        candidates = np.argsort(-u)[: SECOND.top_k]
        previous = int(max(candidates, key=lambda b: scores[int(b)]))
        expected.append(previous)

    def best(_: int, ids: mx.array, scores: mx.array) -> mx.array:
        assert ids.shape == scores.shape == (1, SECOND.top_k)
        return ids[0, mx.argmax(scores[0], keepdims=True)]

    assert selector.walk(hidden, 17, logits, best).tolist() == expected
    spare = mx.concatenate([logits, mx.full((5, 8), 100.0)], axis=1)
    assert selector.walk(hidden, 17, spare, best).tolist() == expected
    assert expected != mx.argmax(logits, axis=-1).tolist(), "the walk must matter"


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.2)],
    ids=["greedy", "sampled"],
)
def test_it_changes_no_token(sampling: Sampling) -> None:
    config = tiny_config(
        vocab_size=VOCABULARY,
        mask_token_id=MASK,
        target_layer_ids=TAPS,
        num_target_layers=LAYERS,
        second=SECOND,
    )
    assert config.hidden_size == HIDDEN
    target, prompt = tiny_target("qwen3"), [5, 17, 99, 3, 120, 44]
    plain, _, _ = run(target, prompt, 24, sampling=sampling)
    drafting = BlockDrafting(target, tiny_drafter(config))
    tokens, steps, _ = run(target, prompt, 24, drafting=drafting, block_size=8, sampling=sampling)
    assert tokens == plain
    assert any(step.drafted == 7 for step in steps)


def test_a_plain_drafter_is_no_second_one() -> None:
    assert type(tiny_drafter()) is Drafter
