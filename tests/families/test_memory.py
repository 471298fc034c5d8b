"""Long conversations: no round leaves anything behind, and windows stay as long as they are."""

from __future__ import annotations

import mlx.core as mx
import pytest

from dflash_mlx.engine.blocks import FixedBlocks
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import decode
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from tests.families.models import family_drafting, family_target
from tests.tiny import Script, run

PROMPT = [5, 17, 99]


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_5", "nemotron_h"])
def test_200_rounds_leave_no_memory_behind(family: str) -> None:
    """Report 89: no graph, no taps, no notes of a layer's input may outlive their round."""
    target = family_target(family)
    context = Context(target, Script([], 3, (0,), family_drafting(target)))
    context.prefill(PROMPT[:-1], draft=True)
    active: list[int] = []

    def cut(tokens: list[int]) -> tuple[int, bool]:
        active.append(mx.get_active_memory())
        return 1, len(active) > 200

    for _ in decode(context, PROMPT[-1], FixedBlocks(4), 10**6, Chooser(Sampling()), cut):
        pass

    assert len(context.tokens) == 3 + 200  # within the first 256 rows that a cache makes room for
    assert max(active[150:]) <= max(active[10:60]) + 4096


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_a_chat_crosses_the_window_turn_by_turn(family: str) -> None:
    """Every turn is what a conversation that begins with all of it says."""
    target = family_target(family)
    context = Context(target, family_drafting(target, window=6))
    said: list[int] = []
    for turn in range(4):
        prompt = [*said, *[(turn * 37 + 11 * i) % 120 for i in range(5)]]
        expected, _, _ = run(target, prompt, 5)

        tokens, _, _ = run(target, prompt, 5, block_size=4, context=context)

        assert tokens == expected
        said = [*prompt, *tokens]


def test_a_window_takes_no_more_rows_however_long_the_conversation() -> None:
    """Report 75."""
    context = Context(family_target("gemma3_text"), None, chunk=512)
    sliding = context.cache[0]
    for _ in range(5):
        context.prefill([(7 * i) % 120 for i in range(512)], draft=False)

    assert sliding.offset == 5 * 512
    assert sliding.buffer.keys.shape[2] <= 3 * 512
    assert context.cache[2].keys.shape[2] >= 5 * 512
