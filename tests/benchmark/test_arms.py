"""The arms that run in this process, on a tiny pair: what they say, and in which rounds."""

from __future__ import annotations

import copy
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.benchmark.arms import Arm, MlxLmArm, accepted_runs, as_loaded, engine_arms
from dflash_mlx.benchmark.sample import Asked, Sample
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.target.model import Target
from tests.families.models import build, config_of
from tests.tiny_folders import tiny_pair

PROMPT = [257, *b"hi"]
WARM = Sampling(temperature=0.8, top_k=40)


def answers(sampling: Sampling, names: str) -> dict[str, Sample]:
    asked = Asked("", PROMPT, sampling, 10, 4)
    return {arm.name: arm.answer(asked) for arm in engine_arms(tiny_pair(), names)}


def test_every_arm_of_ours_and_greedy_mlx_lm_say_the_same_tokens() -> None:
    said = answers(Sampling(), "auto,copy,block-4,mlx-lm")
    assert {name: sample.tokens for name, sample in said.items()} == dict.fromkeys(
        ["plain", "auto", "copy", "block-4", "mlx-lm"], said["plain"].tokens
    )
    assert all(sample.prompt_tokens == 3 and sample.generated == 10 for sample in said.values())
    assert all(s.prefill_seconds > 0 and s.decode_seconds > 0 for s in said.values())


def test_plain_decoding_has_no_rounds_and_a_block_of_four_three_drafts() -> None:
    said = answers(Sampling(), "block-4")
    assert (said["plain"].accepted, said["plain"].drafted) == ([], [])
    assert set(said["block-4"].drafted[:3]) == {3}
    assert len(said["block-4"].accepted) == len(said["block-4"].drafted)


def test_sampled_drafting_says_what_sampled_plain_decoding_says() -> None:
    said = answers(WARM, "block-8")
    assert said["block-8"].tokens == said["plain"].tokens
    assert said["plain"].tokens != answers(Sampling(), "plain")["plain"].tokens


def test_mlx_lm_with_a_draft_model_that_is_the_target_accepts_all() -> None:
    pair = tiny_pair()
    arm: Arm = MlxLmArm("mlx-lm-draft", pair, pair.target.model)
    asked = Asked("", PROMPT, Sampling(), 10, 4)
    drafted, plain = arm.answer(asked), answers(Sampling(), "plain")["plain"]
    assert drafted.tokens == plain.tokens
    assert drafted.accepted == [4, 4]
    arm.close()
    assert arm.answer(asked).accepted == []


def test_mlx_lm_stops_where_the_pair_stops() -> None:
    pair = tiny_pair()
    first = answers(Sampling(), "plain")["plain"].tokens
    assert first is not None
    stopping = replace(pair, stop_tokens=frozenset({first[3]}))
    sample = MlxLmArm("mlx-lm", stopping).answer(Asked("", PROMPT, Sampling(), 10, 4))
    assert sample.tokens == first[: first.index(first[3]) + 1]


def test_mlx_lm_is_measured_with_weights_in_the_order_that_it_loads_them() -> None:
    plain = build("llama")
    fused = Target(copy.deepcopy(plain), config_of("llama"), fused=True)

    model = as_loaded(fused)

    assert np.array(fused.model.layers[0].self_attn.q_proj.weight, copy=False).strides[0] == 4
    ours, theirs = dict(tree_flatten(model.parameters())), dict(tree_flatten(plain.parameters()))
    for name, one in ours.items():
        assert mx.array_equal(one, theirs[name]).item(), name
        assert np.array(one, copy=False).flags.c_contiguous, name
    assert as_loaded(Target(plain, config_of("llama"))) is plain


def test_a_round_of_mlx_lm_ends_with_a_token_of_the_model() -> None:
    assert accepted_runs([False, True, True, False, False, True]) == [0, 2, 0, 1]


def test_plain_decoding_is_always_first() -> None:
    assert [arm.name for arm in engine_arms(tiny_pair(), "block-4, plain")] == ["plain", "block-4"]
    names = [arm.name for arm in engine_arms(tiny_pair(), None)]
    assert names[:3] == ["plain", "auto", "copy"]
    assert names[-3:] == ["block-4", "block-8", "mlx-lm"]


@pytest.mark.parametrize("name", ["", "fast", "block-1", "block-", "block-x", "mlx"])
def test_an_arm_that_does_not_exist_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="no arm"):
        engine_arms(tiny_pair(), name)


def test_a_block_of_more_rows_than_the_drafter_was_trained_for_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="16 is more than the 8 rows"):
        engine_arms(tiny_pair(), "block-16")


def test_without_a_drafter_there_is_only_plain_decoding_to_measure() -> None:
    alone = replace(tiny_pair(), drafter=None)
    assert [arm.name for arm in engine_arms(alone, None)] == ["plain", "mlx-lm"]
    with pytest.raises(DFlashError, match=r"no drafter to measure.*--arms plain,copy-only,mlx-lm"):
        engine_arms(alone, "auto")


@pytest.mark.parametrize("drafter", [True, False])
def test_copies_alone_are_an_arm_with_a_drafter_or_without(drafter: bool) -> None:
    pair = tiny_pair() if drafter else replace(tiny_pair(), drafter=None)
    one_letter = Sampling(logit_bias={70: 300.0})
    arms = engine_arms(pair, "copy-only")
    plain, copied = (arm.answer(Asked("", PROMPT, one_letter, 40, 4)) for arm in arms)
    assert [arm.name for arm in arms] == ["plain", "copy-only"]
    assert copied.tokens == plain.tokens
    assert sum(copied.accepted) > 5
