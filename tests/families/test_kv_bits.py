"""Keys and values in 4 or 8 bits, with a drafter: as plain decoding in the same bits."""

from __future__ import annotations

import pytest

from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import UsageError
from dflash_mlx.target.model import Target
from tests.families.models import build, config_of, family_drafting, family_target
from tests.families.test_identity import ACCEPTS, BLOCK, LENGTH, PROMPT
from tests.target.caches import append, contents, fresh
from tests.tiny import Script, run, same_bits

FAMILIES = ("llama", "qwen3", "qwen3_5")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kv_bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafting_changes_no_token(family: str, kv_bits: int, temperature: float) -> None:
    target = family_target(family, kv_bits=kv_bits)
    sampling = Sampling(temperature=temperature)
    truth, _, _ = run(target, PROMPT, LENGTH, sampling=sampling)
    assert len(set(truth)) > 4

    for drafting in (Script(truth, len(PROMPT), ACCEPTS), family_drafting(target)):
        tokens, _, _ = run(
            target, PROMPT, LENGTH, drafting=drafting, block_size=BLOCK, sampling=sampling
        )

        assert tokens == truth


@pytest.mark.parametrize("kv_bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rows_bits_depend_on_no_round(family: str, kv_bits: int) -> None:
    target = family_target(family, kv_bits=kv_bits)
    text = [(7 * i + 3) % 120 for i in range(40)]
    cache, place = target.make_cache(), 11
    append(target, cache, text[:place])
    for kept in (1, 4, 2, 5, 3, 1):
        append(target, cache, [*text[place : place + kept], 121, 122, 123, 124][:5], keep=kept)
        place += kept

    assert same_bits(contents(cache), fresh(target, text[:place]))


@pytest.mark.parametrize("family", ["gemma3_text", "gemma4", "gpt_oss"])
def test_windows_and_sinks_are_refused_before_a_weight_is_read(family: str) -> None:
    """Report 78. A pass is built, not computed: the weights may be anything."""
    model = build(family)

    with pytest.raises(UsageError, match="leave --kv-bits away"):
        Target(model, config_of(family), kv_bits=8)


def test_heads_too_narrow_for_a_group_are_refused() -> None:
    with pytest.raises(UsageError, match=r"in 8 bits .*group.*: leave --kv-bits away"):
        Target(build("llama"), config_of("llama"), kv_bits=8)


def test_other_widths_are_refused() -> None:
    with pytest.raises(UsageError, match="kv_bits must be 4 or 8; it is 3"):
        Target(build("llama"), config_of("llama"), kv_bits=3)
