"""A target whose layers are fused for a CPU with OpenBLAS computes what mlx-lm's own compute.

Without OpenBLAS, as all tests run, it is the same code over another product.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import BatchKVCache

from dflash_mlx.kernels.products import FusedHead, FusedTable, Narrowing
from dflash_mlx.target.model import Target
from tests.families.models import build, config_of
from tests.target.caches import append, contents

FUSED = ("llama", "qwen2", "qwen3", "qwen3_moe")
TEXT = [(13 * i * i + 7 * i + 3) % 120 for i in range(60)]


def both(family: str, kv_bits: int | None = None) -> tuple[Target, Target]:
    """mlx-lm's own layers, and fused ones; with `kv_bits`, of heads wide enough for them."""
    wide = {"head_dim": 32} if kv_bits else {}
    plain, fused = build(family, **wide), build(family, **wide)
    config = {**config_of(family), **wide}
    return (
        Target(plain, config, (0, 1), kv_bits),
        Target(fused, config, (0, 1), kv_bits, fused=True),
    )


@pytest.mark.parametrize("family", FUSED)
def test_logits_taps_and_caches_are_those_of_mlx_lms_layers(family: str) -> None:
    plain, fused = both(family)
    caches = plain.make_cache(), fused.make_cache()
    assert fused.serving.fused
    assert not plain.serving.fused

    for tokens in (TEXT[:40], TEXT[40:47], TEXT[47:48], TEXT[48:49]):
        expected = plain.forward(mx.array([tokens]), caches[0])
        ours = fused.forward(mx.array([tokens]), caches[1])
        for one, other in zip(ours, expected, strict=True):
            assert one is not None
            assert other is not None
            assert mx.allclose(one, other, atol=2e-5).item()
    for one, other in zip(contents(caches[1]), contents(caches[0]), strict=True):
        assert mx.allclose(one, other, atol=1e-5).item()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_traditional": True},
    ],
    ids=["linear", "llama3", "yarn", "traditional"],
)
def test_any_rope_turns_as_mlx_lms(rope: dict[str, Any]) -> None:
    """Of the first two we have a table; the others are the layer's own."""
    config = {**config_of("llama"), **rope}
    plain = Target(build("llama", **rope), config, (0, 1))
    fused = Target(build("llama", **rope), config, (0, 1), fused=True)
    tokens = mx.array([TEXT])

    expected, _ = plain.forward(tokens, plain.make_cache())
    ours, _ = fused.forward(tokens, fused.make_cache())

    assert mx.allclose(ours, expected, atol=1e-4).item()


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_a_rollback_leaves_what_a_shorter_pass_leaves(kept: int) -> None:
    _, fused = both("llama")
    rolled, straight = fused.make_cache(), fused.make_cache()
    append(fused, rolled, TEXT[:9])
    append(fused, straight, TEXT[:9])

    append(fused, rolled, TEXT[9:15], keep=kept)
    append(fused, straight, TEXT[9 : 9 + kept])

    for one, other in zip(contents(rolled), contents(straight), strict=True):
        assert one.shape == other.shape
        assert mx.allclose(one, other, atol=1e-6).item()


def test_a_quantized_cache_is_left_to_mlx_lms_attention() -> None:
    plain, fused = both("llama", kv_bits=8)
    tokens = mx.array([TEXT[:20]])

    expected, _ = plain.forward(tokens, plain.make_cache())
    ours, _ = fused.forward(tokens, fused.make_cache())

    assert mx.allclose(ours, expected, atol=1e-3).item()


@pytest.mark.parametrize("family", FUSED)
def test_each_sequence_of_a_batch_sees_its_own(family: str) -> None:
    """Padding that sees nothing itself, and that nothing sees, does not matter."""
    plain, fused = both(family)
    tokens = mx.array([TEXT[:8], [0, 0, 0, *TEXT[:5]]])

    out = []
    for target in (plain, fused):
        cache = [BatchKVCache([0, 3]) for _ in target.layers]
        rows = [target.forward(part, cache)[0] for part in (tokens, mx.array([[7], [9]]))]
        out.append(mx.concatenate(rows, axis=1))

    assert mx.allclose(out[1][0], out[0][0], atol=2e-5).item()
    assert mx.allclose(out[1][1, 3:], out[0][1, 3:], atol=2e-5).item()


def test_a_batch_is_served_by_our_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads keys once for all query heads that share them."""
    monkeypatch.delattr("dflash_mlx.target.fused.scaled_dot_product_attention")
    _, fused = both("llama")
    cache = [BatchKVCache([0, 3]) for _ in fused.layers]

    logits, _ = fused.forward(mx.array([TEXT[:8], [0, 0, 0, *TEXT[:5]]]), cache)

    assert mx.isfinite(logits).all().item()


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_and_the_layers_that_end_a_block_are_served(tied: bool) -> None:
    model = build("llama", tie_word_embeddings=tied)
    target = Target(model, {**config_of("llama"), "tie_word_embeddings": tied}, (0,), fused=True)

    with target.serving.on():
        assert type(target.head_module) is (FusedTable if tied else FusedHead)
        for layer in target.layers:
            assert type(layer.self_attn.o_proj) is Narrowing
            assert type(layer.mlp.down_proj) is Narrowing


def test_the_model_can_still_be_called_as_it_came() -> None:
    """Another target may share it: outside a pass its classes and weights are its own."""
    plain, fused = both("qwen3")
    tokens = mx.array([TEXT[:10]])

    assert mx.allclose(fused.model(tokens), plain.model(tokens), atol=2e-5).item()


def test_a_family_that_is_not_listed_is_left_as_it_is() -> None:
    target = Target(build("gemma3_text"), config_of("gemma3_text"), (0, 1), fused=True)

    assert not target.serving.fused


def test_quantized_layers_are_left_as_they_are() -> None:
    model = build("llama", hidden_size=64, intermediate_size=64)
    nn.quantize(model, group_size=32, bits=4)

    target = Target(model, config_of("llama"), (0, 1), fused=True)

    assert not target.serving.fused
