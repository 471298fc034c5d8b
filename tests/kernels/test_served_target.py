"""A target by our ops: mlx-lm's own forward where the twins run, and rollback as ever."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.kernels.metal import Metal
from dflash_mlx.kernels.race import Contest
from dflash_mlx.target.model import Target
from tests.families.models import build, config_of
from tests.target.caches import append, contents
from tests.tiny import same_bits

LISTED = ("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe")
TEXT = [(13 * i * i + 7 * i + 3) % 120 for i in range(60)]


class Twins(Metal):
    """No kernel at all: every op is its twin."""

    def serves(self, op: str, obstacle: str | None, contest: Contest | None = None) -> bool:
        return super().serves(op, obstacle or "no kernel")


def passes(target: Target, cache: list[Any]) -> list[mx.array]:
    """Logits and taps of a prefill, of a block and of single rows."""
    out = []
    for tokens in (TEXT[:40], TEXT[40:47], TEXT[47:48], TEXT[48:49]):
        logits, taps = target.forward(mx.array([tokens]), cache)
        assert taps is not None
        mx.eval(logits, taps)
        out += [logits, taps]
    return out


@pytest.mark.parametrize("family", LISTED)
def test_with_twins_every_bit_is_that_of_mlx_lms_forward(family: str) -> None:
    plain = Target(build(family), config_of(family), (0, 1))
    twins = Twins()
    ours = Target(build(family), config_of(family), (0, 1), metal=twins)
    cache, our_cache = plain.make_cache(), ours.make_cache()

    assert same_bits(passes(ours, our_cache), passes(plain, cache))
    assert same_bits(contents(our_cache), contents(cache))
    assert {"block_attention: twin, no kernel", "qkv_prologue: twin, no kernel"} <= set(twins.ran)


@pytest.mark.parametrize("kept", [1, 3, 6])
@pytest.mark.parametrize("family", ["llama", "qwen3_5", "qwen3_next"])
def test_with_twins_a_rollback_is_that_of_mlx_lms_layers(family: str, kept: int) -> None:
    plain = Target(build(family), config_of(family), (0, 1))
    ours = Target(build(family), config_of(family), (0, 1), metal=Twins())
    caches = []
    for target in (plain, ours):
        cache = target.make_cache()
        append(target, cache, TEXT[:9])
        append(target, cache, TEXT[9:15], keep=kept)
        append(target, cache, TEXT[9 + kept : 12 + kept])
        caches.append(contents(cache))
    assert same_bits(caches[0], caches[1])
