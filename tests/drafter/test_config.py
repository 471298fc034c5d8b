"""Every published way to write `config.json` gives one `DrafterConfig`, or one sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.config import FULL, SLIDING, read_config
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.errors import DFlashError

from .tiny import RAW, parameters, tiny_config, tiny_drafter

SHAPES = {name: array.shape for name, array in parameters(tiny_drafter()).items()}


def read(without: tuple[str, ...] = (), **changes: Any) -> DrafterConfig:
    """The tiny config with some top-level keys changed or left out."""
    raw = copy.deepcopy(RAW) | changes
    return read_config({key: raw[key] for key in raw if key not in without}, SHAPES)


def read_own(**changes: Any) -> DrafterConfig:
    """The tiny config with some keys of `dflash_config` changed; None leaves one out."""
    own = {**RAW["dflash_config"], **changes}
    return read(dflash_config={key: value for key, value in own.items() if value is not None})


def test_the_plain_layout_is_read_whole() -> None:
    config = read()
    assert config == tiny_config(max_position_embeddings=4096)


def test_block_size_stands_at_the_top_or_inside_and_is_16_when_absent() -> None:
    """Report 55: newer cards nest the block size."""
    assert read(block_size=4).block_size == 4
    assert read_own(block_size=5).block_size == 5
    assert read(without=("block_size",)).block_size == 16


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rope_theta": None},
        {"rope_scaling": {"rope_theta": 5e5, "type": "default"}, "rope_theta": None},
        {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.25}},
    ],
    ids=["flat", "rope_parameters", "rope_scaling", "copied partial factor"],
)
def test_rope_is_flat_or_nested(changes: dict[str, Any]) -> None:
    """Report 55: newer cards nest the rope."""
    rope = read(**changes).rope
    assert (rope.theta, rope.kind, rope.interleaved) == (5e5, "default", False)


def test_yarn_keeps_its_numbers_and_takes_the_trained_length_if_it_has_none() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert read(rope_scaling=yarn).rope == RopeConfig(10000.0, "yarn", yarn)
    del yarn["original_max_position_embeddings"]
    assert read(rope_scaling=yarn).rope.scaling["original_max_position_embeddings"] == 4096


def test_an_interleaved_rope_is_told_by_its_key() -> None:
    assert read(rope_is_neox_style=False).rope.interleaved
    assert not read(rope_is_neox_style=True).rope.interleaved


def test_layer_types_are_all_full_when_absent() -> None:
    assert read().layer_types == (FULL, FULL)
    mixed = read(layer_types=[SLIDING, FULL], sliding_window=16)
    assert [mixed.window(0), mixed.window(1)] == [16, None]
    assert [mixed.causal(0), mixed.causal(1)] == [True, False]


@pytest.mark.parametrize("is_causal", [True, False])
def test_is_causal_holds_for_every_layer_when_it_is_given(is_causal: bool) -> None:
    config = read(layer_types=[SLIDING, FULL], sliding_window=16, is_causal=is_causal)
    assert [config.causal(0), config.causal(1)] == [is_causal, is_causal]


def test_scales_and_softcap_are_off_unless_given() -> None:
    assert (read().embedding_scale, read().output_multiplier) == (1.0, 1.0)
    assert read().logit_softcap is None
    assert read_own(final_logit_softcapping=0).logit_softcap is None
    config = read_own(
        input_embedding_scale=2.0, output_multiplier=0.5, final_logit_softcapping=15.0
    )
    assert (config.embedding_scale, config.output_multiplier) == (2.0, 0.5)
    assert config.logit_softcap == 15.0


def test_weights_tell_the_dimensions_where_the_config_is_a_copy_of_the_targets() -> None:
    config = read(
        num_hidden_layers=6,  # the target's, as num_target_layers says
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=9999,
        layer_types=[FULL] * 6,
    )
    own = read()
    for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
        assert getattr(config, name) == getattr(own, name)
    assert config.layer_types == (FULL, FULL)


def test_a_multimodal_copy_is_read_from_its_text_config() -> None:
    text = {"vocab_size": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    config = read(without=tuple(text), text_config=text)
    assert (config.vocab_size, config.rms_norm_eps, config.rope.theta) == (64, 1e-5, 1e6)


@pytest.mark.parametrize("key", ["vocab_size", "rms_norm_eps", "rope_theta"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(DFlashError, match=f"lacks {key}"):
        read(without=(key,))


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_a_missing_key_of_its_own_part_is_named(key: str) -> None:
    with pytest.raises(DFlashError, match=f"lacks {key}"):
        read_own(**{key: None})


@pytest.mark.parametrize("mask", [-1, 64, 151669])
def test_a_mask_token_outside_the_vocabulary_is_refused(mask: int) -> None:
    """Report 33: looked up outside the table, MLX returns garbage and says nothing."""
    with pytest.raises(DFlashError, match=f"mask_token_id {mask} is outside its vocabulary of 64"):
        read_own(mask_token_id=mask)


@pytest.mark.parametrize(
    ("key", "value"), [("pad_token_id", 63), ("eos_token_id", 63), ("eos_token_id", [2, 63])]
)
def test_a_mask_token_that_means_something_else_is_refused(key: str, value: Any) -> None:
    """Report 33: defaulted to pad or eos."""
    with pytest.raises(DFlashError, match=f"mask_token_id 63 is also its {key}"):
        read(**{key: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer_types": [FULL, "linear_attention"]}, "layer_types name linear_attention"),
        ({"layer_types": [SLIDING, FULL, FULL], "sliding_window": 4}, "2 layers, but .* list 3"),
        ({"layer_types": [SLIDING, FULL]}, "sliding_window is None"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 3, but its weights hold 2"),
        ({"hidden_size": 64}, "hidden_size 64, but its weights have 32"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"block_size": 1}, "block_size is 1"),
        ({"num_target_layers": 4}, r"target_layer_ids \[1, 4\] reach outside a target of 4"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' needs factor"),
        ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "rope differs by layer type"),
        ({"rope_theta": "big"}, "rope_theta must be a number; it is 'big'"),
        ({"vocab_size": 64.5}, "vocab_size must be a whole number; it is 64.5"),
        ({"dflash_config": [1]}, r"dflash_config must be a JSON object; it is \[1\]"),
        ({"is_causal": "no"}, "is_causal must be true or false; it is 'no'"),
    ],
)
def test_a_contradiction_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DFlashError, match=sentence):
        read(**changes)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([1, 3, 4], "fc.weight takes 2 taps of 32, but its target_layer_ids list 3"),
        ([4, 4], "one or more different layers"),
        ([-1, 4], "reach outside"),
        (["1", "4"], "must be whole numbers"),
    ],
)
def test_impossible_taps_are_refused(ids: list[Any], sentence: str) -> None:
    with pytest.raises(DFlashError, match=sentence):
        read_own(target_layer_ids=ids)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(DFlashError, match=r"weights lack fc\.weight"):
        read_config(RAW, {name: shape for name, shape in SHAPES.items() if name != "fc.weight"})


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("layers.0.self_attn.q_proj.weight", (30, 32), "has 30 rows, not heads of 8"),
        ("layers.0.self_attn.q_norm.weight", (8, 1), "impossible shape"),
        ("norm.weight", (0,), "impossible shape"),
        ("layers.0.self_attn.q_proj.weight", (24, 32), "3 query heads, which 2 key heads cannot"),
    ],
)
def test_weights_of_an_impossible_shape_are_refused(
    name: str, shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(DFlashError, match=sentence):
        read_config(RAW, SHAPES | {name: shape})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
PLACES = [
    *RAW,
    "rope_parameters",
    "rope_scaling",
    "layer_types",
    "sliding_window",
    "is_causal",
    "text_config",
    "eos_token_id",
]


@given(st.dictionaries(st.sampled_from(PLACES), JSON, max_size=3))
def test_any_other_config_is_read_or_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    """One that is read makes a drafter of the very weights that lie there."""
    config, refusal = None, ""
    try:
        config = read(**changes)
    except DFlashError as error:
        refusal = str(error)
    if config is None:
        assert refusal.startswith("The ")
        assert refusal.endswith(".")
    else:
        made = parameters(Drafter(config))
        assert {name: array.shape for name, array in made.items()} == SHAPES
