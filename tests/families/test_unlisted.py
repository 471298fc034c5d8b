"""Architectures that nobody listed: they draft if their caches go back, else run plainly."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import as_ints
from dflash_mlx.target.model import Target
from tests.families.models import WINDOW, attention_config
from tests.families.test_identity import ACCEPTS, BLOCK, LENGTH, PROMPT
from tests.tiny import Script, randomize, run

CONFIGS: dict[str, dict[str, Any]] = {
    "olmo3": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere2": {"num_hidden_layers": 4, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {  # of text and images, used for text
        "text_config": {
            **attention_config(),
            "model_type": "gemma3_text",
            "num_hidden_layers": 3,
            "query_pre_attn_scalar": 16,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
        }
    },
    "qwen3_vl": {"text_config": {**attention_config(), "model_type": "qwen3_vl_text"}},
    "falcon_h1": {  # attention and Mamba-2 side by side, in one layer
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_d_head": 8,
        "mamba_n_heads": 4,
    },
    "jamba": {  # its Mamba layers do not say how far they are
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    },
}


@cache
def target_of(family: str) -> Target:
    """A tiny random model of the architecture."""
    config = {"model_type": family, **attention_config(), **CONFIGS[family]}
    module = import_module(f"mlx_lm.models.{family}")
    model = module.Model(module.ModelArgs.from_dict(config))
    randomize(model, seed=3)
    return Target(model, config, (0, 1))


@pytest.mark.parametrize(
    "family", ["olmo3", "cohere2", "gemma2", "gemma3", "qwen3_vl", "falcon_h1"]
)
def test_it_drafts_if_its_caches_can_go_back(family: str) -> None:
    target = target_of(family)
    assert target.rollback_refusal() is None
    truth, _, _ = run(target, PROMPT, LENGTH)
    script = Script(truth, len(PROMPT), ACCEPTS)

    tokens, _, _ = run(target, PROMPT, LENGTH, drafting=script, block_size=BLOCK)

    assert tokens == truth
    assert len(set(truth)) > 4
    assert script.rounds == 6


def test_one_that_cannot_says_why_and_runs_plainly() -> None:
    target = target_of("jamba")
    context = Context(target, None)
    first, _, _ = run(target, PROMPT, LENGTH, context=context)
    for prompt in ([*PROMPT, *first, 3], [77, *PROMPT]):
        expected, _, _ = run(target, prompt, 6)

        tokens, _, _ = run(target, prompt, 6, context=context)

        assert tokens == expected
    assert target.rollback_refusal() == (
        "its layers cannot be run again over a part of a block (a recurrent layer does not say how"
        " many rows it has seen)"
    )


def test_several_caches_in_one_layer_go_back() -> None:
    assert isinstance(target_of("falcon_h1").make_cache()[0], CacheList)


def test_to_ask_whether_it_can_computes_nothing() -> None:
    target = target_of("falcon_h1")
    mx.eval(target.model.parameters())
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    assert target.rollback_refusal() is None

    assert mx.get_peak_memory() <= before + 1000  # the tokens themselves


UNLISTED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_ctx": 64,
        "n_embd": 32,
        "n_head": 2,
        "n_layer": 2,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 128,
    },
    "gpt_neox": {
        **attention_config(),
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.5,
    },
}


@pytest.mark.parametrize("family", UNLISTED)
def test_one_that_keeps_its_layers_elsewhere_runs_plainly(family: str) -> None:
    """And says why it does not draft: where its head is, nobody knows."""
    config = {"model_type": family, **UNLISTED[family]}
    module = import_module(f"mlx_lm.models.{family}")
    model = module.Model(module.ModelArgs.from_dict(config))
    randomize(model, seed=3)
    target = Target(model, config)
    expected: list[int] = []
    tokens = mx.array([PROMPT])
    for _ in range(6):
        likeliest = mx.argmax(model(tokens)[:, -1:], axis=-1)
        expected += as_ints(likeliest[0])
        tokens = mx.concatenate([tokens, likeliest], axis=1)

    said, _, _ = run(target, PROMPT, 6)

    assert said == expected
    assert (target.vocab_rows, target.num_layers) == (128, 2)
    reason = f"{family} keeps its layers in a place that dflash-mlx does not know"
    assert target.rollback_refusal() == reason
    assert target.hidden_size == 32


def test_learned_positions_end_where_the_table_does() -> None:
    config = {"model_type": "gpt2", **UNLISTED["gpt2"]}
    module = import_module("mlx_lm.models.gpt2")
    target = Target(module.Model(module.ModelArgs.from_dict(config)), config)
    assert target.context_limit == 64
