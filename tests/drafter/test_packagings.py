"""Every packaging of one drafter is one drafter: the same config, the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.drafter import Drafter, DrafterConfig, load_drafter
from dflash_mlx.drafter.config import FULL, SLIDING
from dflash_mlx.errors import DFlashError
from tests.drafter.packagings import (
    DRAFTED,
    deepspec_config,
    reduced,
    specforge_config,
    speculators_config,
    speculators_layers,
    with_the_targets,
    write,
)
from tests.drafter.tiny import RAW, parameters, rows, taps, tiny_config, tiny_drafter

DFLASH2 = Path(__file__).parent.parent / "data" / "parity" / "dflash2"


def config_of(folder: Path, config: dict[str, Any]) -> DrafterConfig:
    """What a checkpoint with that `config.json` says of itself."""
    return load_drafter(write(folder, config, parameters(tiny_drafter()))).config


def rows_of(drafter: Drafter) -> mx.array:
    """What the drafter makes of a fixed context and block."""
    context, block = taps(9, drafter.config), rows(7, 32, seed=2)
    return drafter.hidden_states(block, context, drafter.make_cache())


@pytest.mark.parametrize("borrowed", [False, True])
@pytest.mark.parametrize(
    "config",
    [speculators_config(), deepspec_config(), specforge_config(), RAW],
    ids=["speculators", "deepspec", "specforge", "z-lab"],
)
def test_the_rows_are_the_same(tmp_path: Path, config: dict[str, Any], borrowed: bool) -> None:
    """Copies of the target's embedding and head are left alone: the target's own serve."""
    drafter = tiny_drafter()
    zlab = "dflash_config" in config
    weights = with_the_targets(drafter) if borrowed and not zlab else parameters(drafter)

    loaded = load_drafter(write(tmp_path, config, weights))

    assert mx.array_equal(rows_of(loaded), rows_of(drafter))
    assert parameters(loaded).keys() == parameters(drafter).keys()


def test_speculators_count_hidden_states_with_the_embedding(tmp_path: Path) -> None:
    """Report 22: an id too high feeds the drafter another layer, and nothing fails."""
    config = config_of(tmp_path, speculators_config())
    assert config.target_layer_ids == (1, 4)
    assert (config.rope.theta, config.rope.kind) == (10000.0, "default")
    assert replace(config, rope=tiny_config().rope) == tiny_config(
        max_position_embeddings=4096, num_target_layers=None, target_model="org/Target-8B"
    )


@pytest.mark.parametrize("bidirectional", [True, False])
def test_speculators_say_apart_how_sliding_layers_see(tmp_path: Path, bidirectional: bool) -> None:
    config = speculators_layers(layer_types=[SLIDING, FULL], sliding_window=16)
    read = config_of(tmp_path, config | {"sliding_window_non_causal": bidirectional})
    assert [read.causal(0), read.causal(1)] == [not bidirectional, False]
    assert read.window(0) == 16


def test_speculators_with_a_rope_for_each_type_take_that_of_the_sliding_layers(
    tmp_path: Path,
) -> None:
    ropes = {SLIDING: {"rope_theta": 500.0}, FULL: {"rope_theta": 9e9}}
    assert config_of(tmp_path, speculators_layers(rope_parameters=ropes)).rope.theta == 500.0


def test_speculators_of_dflash_2_are_dflash_2(tmp_path: Path) -> None:
    drafter = load_drafter(DFLASH2)
    layers = ("hidden_size", "vocab_size", "rms_norm_eps", "rope_theta", "num_hidden_layers")
    from dflash_mlx.model_folder import read_json

    raw = read_json(DFLASH2 / "config.json")
    own = raw["dflash_config"]
    nested = {key: raw[key] for key in (*layers, "layer_types", "sliding_window") if key in raw}
    config = {
        "speculators_model_type": "dflash2",
        "transformer_layer_config": nested,
        "block_size": drafter.config.block_size,
        "aux_hidden_state_layer_ids": [i + 1 for i in drafter.config.target_layer_ids],
        "mask_token_id": drafter.config.mask_token_id,
        "selector_top_k": own["selector_top_k"],
    }

    read = load_drafter(write(tmp_path, config, parameters(drafter))).config

    assert read.second == drafter.config.second
    assert read.target_layer_ids == drafter.config.target_layer_ids
    assert read.is_causal is False  # the default of that kind


def test_from_the_anchor_on_seven_rows_are_seven_drafts(tmp_path: Path) -> None:
    stated = config_of(tmp_path, speculators_config(sample_from_anchor=True, block_size=7))
    assert (stated.first_row, stated.verified_rows, stated.rows_in_doubt) == (0, 8, False)
    assert tiny_config().verified_rows == tiny_config().block_size == 8


def test_deepspec_says_nothing_of_its_rows(tmp_path: Path) -> None:
    config = config_of(tmp_path, deepspec_config())
    assert (config.drafts_from_anchor, config.rows_in_doubt) == (True, True)
    assert (config.block_size, config.target_layer_ids) == (7, (1, 4))
    renamed = config_of(tmp_path, deepspec_config(architectures=["DFlashDraftModel"]))
    assert (renamed.drafts_from_anchor, renamed.rows_in_doubt) == (False, True)


def test_specforge_without_a_projector_is_z_labs(tmp_path: Path) -> None:
    assert config_of(tmp_path, specforge_config()) == tiny_config(max_position_embeddings=4096)
    shifted = config_of(tmp_path, specforge_config(shift_label=True))
    assert shifted.rows_in_doubt


def test_a_reduced_vocabulary_has_its_own_head(tmp_path: Path) -> None:
    weights = reduced(tiny_drafter())
    config = speculators_config(draft_vocab_size=len(DRAFTED))

    loaded = load_drafter(write(tmp_path, config, weights))

    assert (loaded.config.draft_vocab, loaded.config.own_head) == (DRAFTED, True)
    assert mx.array_equal(loaded.lm_head.weight, weights["lm_head.weight"])


def test_a_reduced_vocabulary_in_another_order_is_put_in_order_with_its_head(
    tmp_path: Path,
) -> None:
    ids = (21, 3, 34, 5, 13, 8)
    weights = reduced(tiny_drafter(), ids)

    loaded = load_drafter(write(tmp_path, speculators_config(), weights))

    assert loaded.config.draft_vocab == DRAFTED
    assert mx.array_equal(loaded.lm_head.weight[0], weights["lm_head.weight"][1])
    assert mx.array_equal(loaded.lm_head.weight[4], weights["lm_head.weight"][0])


def test_a_reduced_vocabulary_without_a_head_uses_the_targets(tmp_path: Path) -> None:
    weights = reduced(tiny_drafter())
    del weights["lm_head.weight"], weights["t2d"]
    config = load_drafter(write(tmp_path, speculators_config(), weights)).config
    assert (config.draft_vocab, config.own_head) == (DRAFTED, False)


def test_maps_of_every_token_to_itself_reduce_nothing(tmp_path: Path) -> None:
    weights = parameters(tiny_drafter()) | {"d2t": mx.zeros((64,), mx.int64)}
    assert load_drafter(write(tmp_path, speculators_config(), weights)).config.draft_vocab is None


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"t2d": mx.zeros((64,), mx.bool_)}, "d2t and t2d contradict one another"),
        ({"d2t": mx.array([3, 64, 0, 0, 0, 0])}, "d2t maps to no 6 different tokens"),
        ({"d2t": mx.array([3, 2, 0, 0, 0, 0])}, "d2t maps to no 6 different tokens"),
        ({"lm_head.weight": mx.zeros((5, 32))}, r"lm_head.weight is \[5, 32\], which contradicts"),
        ({"lm_head.weight": mx.zeros((6, 16))}, r"lm_head.weight is \[6, 16\], which contradicts"),
        ({"embed_tokens.weight": mx.zeros((60, 32))}, r"embed_tokens.weight is \[60, 32\]"),
    ],
)
def test_what_contradicts_the_vocabulary_is_refused(
    tmp_path: Path, tensors: dict[str, mx.array], sentence: str
) -> None:
    weights = reduced(tiny_drafter())
    if "d2t" in tensors:
        del weights["t2d"]
    with pytest.raises(DFlashError, match=sentence):
        load_drafter(write(tmp_path, speculators_config(), weights | tensors))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (speculators_config(speculators_model_type="eagle3"), "of kind 'eagle3', which is not"),
        (speculators_config(speculators_model_type="dspark"), "a Markov head of rank 256"),
        (speculators_config(transformer_layer_config=None), "lacks transformer_layer_config"),
        (speculators_config(aux_hidden_state_layer_ids=None), "lacks aux_hidden_state_layer_ids"),
        (speculators_config(aux_hidden_state_layer_ids=[0, 5]), "hold 0, the embedding itself"),
        (speculators_config(aux_hidden_state_layer_ids=[2, 4, 5]), "fc.weight takes 2 taps"),
        (speculators_config(mask_token_id=None), "lacks mask_token_id"),
        (speculators_config(target_hidden_size=64), "target_hidden_size 64 differs"),
        (speculators_layers(pad_token_id=63), "mask_token_id 63 is also its pad_token_id"),
        (speculators_layers(hidden_size=64), "hidden_size 64, but its weights have 32"),
        (deepspec_config(markov_rank=256), "a Markov head of rank 256"),
        (specforge_config(projector_type="domino"), "SpecForge's projector_type 'domino'"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DFlashError, match=sentence) as caught:
        config_of(tmp_path, config)
    assert "\n" not in str(caught.value)


def test_a_markov_head_of_rank_0_is_none_at_all(tmp_path: Path) -> None:
    config = speculators_config(speculators_model_type="dspark", markov_rank=0, block_size=7)
    del config["sample_from_anchor"]
    weights = parameters(tiny_drafter()) | {"confidence_head.proj.weight": mx.zeros((1, 32))}
    read = load_drafter(write(tmp_path, config, weights)).config
    assert (read.drafts_from_anchor, read.rows_in_doubt) == (True, False)


def test_an_lfm_drafter_turns_neighbouring_channels(tmp_path: Path) -> None:
    """LFM2.5: `rope_is_neox_style: false`."""
    drafter = tiny_drafter()
    loaded = load_drafter(write(tmp_path, RAW | {"rope_is_neox_style": False}, parameters(drafter)))
    expected = tiny_drafter(tiny_config(rope=replace(drafter.config.rope, interleaved=True)))
    assert mx.array_equal(rows_of(loaded), rows_of(expected))
    assert not mx.allclose(rows_of(loaded), rows_of(drafter), atol=1e-3)
