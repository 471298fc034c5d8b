"""The new drafter's shape, its mask token, and its first weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.errors import UsageError
from dflash_mlx.training.architecture import (
    check_fits,
    choose_mask_token,
    default_taps,
    make_drafter,
    new_config,
)
from dflash_mlx.training.checkpoint import write_drafter
from dflash_mlx.training.initial import flat, nested, random_weights, target_weights
from dflash_mlx.training.settings import RunSettings, gather
from tests.tiny_folders import MASK, tiny_pair
from tests.training.tiny import TAPS, tiny_config, tiny_drafter, tiny_target


@pytest.mark.parametrize(
    ("layers", "taps"),
    [
        (36, [1, 9, 17, 25, 33]),  # Qwen3-4B and 8B
        (32, [1, 8, 15, 22, 29]),  # Llama-3.1-8B
        (64, [1, 16, 31, 46, 61]),  # Qwen3.6-27B
        (40, [1, 10, 19, 28, 37]),  # Qwen3.6-35B-A3B
        (24, [1, 6, 11, 16, 21]),  # gpt-oss-20b
        (30, [1, 8, 14, 20, 27]),  # SmolLM2-135M
    ],
)
def test_default_taps_are_those_of_the_published_drafters(layers: int, taps: list[int]) -> None:
    assert default_taps(layers) == taps


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_small_target_has_fewer_taps_and_none_twice(layers: int) -> None:
    taps = default_taps(layers)
    assert len(set(taps)) == len(taps)
    assert all(0 <= tap < layers for tap in taps)


def test_the_mask_is_the_token_that_is_named_so() -> None:
    assert choose_mask_token(tiny_pair()) == MASK


def test_a_new_drafter_takes_its_widths_from_the_target(tmp_path: Path) -> None:
    pair = tiny_pair()
    config = new_config(pair, RunSettings(layers=1, block_size=6))
    write_drafter(tmp_path, config, flat(make_drafter(config).parameters()))
    drafter = load_drafter(tmp_path)
    assert drafter.config.hidden_size == pair.target.hidden_size
    assert drafter.config.vocab_size == pair.target.vocab_rows
    assert drafter.config.num_target_layers == pair.target.num_layers
    assert (drafter.config.num_layers, drafter.config.block_size) == (1, 6)
    assert drafter.config.mask_token_id == MASK


@pytest.mark.parametrize(
    ("setting", "value", "key"),
    [
        ("taps", [1, 0], "target_layer_ids"),
        ("heads", 4, "num_attention_heads"),
        ("kv_heads", 2, "num_key_value_heads"),
        ("head_dim", 8, "head_dim"),
        ("intermediate_size", 20, "intermediate_size"),
        ("mask_token", 7, "mask_token_id"),
    ],
)
def test_a_setting_of_the_shape_reaches_the_drafter(setting: str, value: object, key: str) -> None:
    every = [gather(RunSettings, changes) for changes in ({setting: value}, {})]
    configs = [new_config(tiny_pair(), settings) for settings in every]
    given, default = ({**config.pop("dflash_config"), **config} for config in configs)
    assert given[key] == value
    assert [name for name in given if given[name] != default[name]] == [key]


def test_heads_are_as_wide_as_the_targets_however_many_they_are() -> None:
    """The tiny target's are 32 / 2 wide."""
    assert new_config(tiny_pair(), RunSettings(heads=4))["head_dim"] == 16


@pytest.mark.parametrize(("mask", "use"), [(258, "eos"), (256, "bos"), (257, "pad"), (7, "stop")])
def test_a_token_of_texts_is_no_mask(mask: int, use: str) -> None:
    tokens = SimpleNamespace(eos_token_id=258, bos_token_id=256, pad_token_id=257)
    pair = replace(tiny_pair(), tokenizer=cast(Any, tokens), stop_tokens=frozenset({258, 7}))
    config = new_config(tiny_pair(), RunSettings(mask_token=mask))
    with pytest.raises(UsageError, match=f"Token {mask} cannot be the mask.* {use} token"):
        check_fits(config, pair)


def test_a_saved_config_is_z_labs(tmp_path: Path) -> None:
    config = new_config(tiny_pair(), RunSettings())
    write_drafter(tmp_path, config, flat(make_drafter(config).parameters()), mx.bfloat16)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == ["DFlashDraftModel"]
    assert saved["torch_dtype"] == "bfloat16"
    assert set(saved["dflash_config"]) == {"mask_token_id", "target_layer_ids"}


def test_random_weights_are_the_same_for_a_seed() -> None:
    drafter, target = tiny_drafter(), tiny_target()
    one, same, other = (random_weights(drafter, target, seed) for seed in (0, 0, 1))
    for name in one:
        assert mx.array_equal(one[name], same[name])
    assert not mx.array_equal(one["fc.weight"], other["fc.weight"])
    assert not mx.array_equal(
        one["layers.0.self_attn.q_proj.weight"], one["layers.1.self_attn.q_proj.weight"]
    )


def test_an_untrained_drafter_insists_on_no_token() -> None:
    """However loud the target's embedding is."""
    drafter, target = tiny_drafter(), tiny_target()
    for loudness in (1.0, 30.0):
        target.embedding.weight *= loudness
        norm = random_weights(drafter, target, 0)["norm.weight"]
        row = target.embed(mx.array([[drafter.config.mask_token_id]]))
        logits = target.head(mx.fast.rms_norm(row, norm, 1e-6))
        assert mx.sqrt(mx.var(logits)) < 4.1


def test_a_drafter_that_begins_as_the_last_layer_finds_its_context_there() -> None:
    """With the tap below it, keys and values of the context are the target's own."""
    target = tiny_target((0, 2))
    drafter = make_drafter_of(1, (0, 2))
    drafter.update(nested(target_weights(drafter, target, seed=0)))
    tokens = mx.array(np.arange(12)[None])
    cache = target.make_cache()
    _, taps = target.forward(tokens, cache)
    mx.eval(taps, [entry.state for entry in cache])
    assert taps is not None
    drafted = drafter.make_cache()
    drafter.extend(taps, drafted)
    values = drafted.layers[0].rows(12)[1]
    # fc has small noise from the other tap, so nearly.
    error = mx.abs(values - cache[3].state[1][..., :12, :]).mean() / mx.abs(values).mean()
    assert error < 0.05


def test_layers_of_other_widths_cannot_be_taken_over() -> None:
    config = tiny_config(head_dim=16)
    with pytest.raises(UsageError, match="--init random"):
        target_weights(tiny_drafter(config), tiny_target(), seed=0)


class ShiftedNorm(nn.RMSNorm):
    """Gemma's: the weight is 1 + w."""

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, 1 + self.weight, self.eps)


@pytest.mark.parametrize("part", ["input_layernorm", "post_attention_layernorm", "hidden_act"])
def test_layers_that_compute_otherwise_under_the_same_names_cannot_be_taken_over(part: str) -> None:
    target = tiny_target()
    if part == "hidden_act":
        target.text_config[part] = "gelu_pytorch_tanh"
    else:
        setattr(target.body.layers[-1], part, ShiftedNorm(target.hidden_size))
    with pytest.raises(UsageError, match=r"another kind .* --init random"):
        target_weights(tiny_drafter(), target, seed=0)


def test_more_layers_than_the_target_has_cannot_be_taken_over() -> None:
    with pytest.raises(UsageError, match="4 layers"):
        target_weights(make_drafter_of(5, TAPS), tiny_target(), seed=0)


def make_drafter_of(layers: int, taps: tuple[int, ...]) -> Drafter:
    return tiny_drafter(
        tiny_config(
            num_layers=layers, layer_types=("full_attention",) * layers, target_layer_ids=taps
        )
    )
