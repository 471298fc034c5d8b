"""Hidden rows and drafts equal those of the public reference, cycle after cycle.

The fixtures hold small random drafters in published packaging and what the reference computed.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.drafter.dflash2 import SecondDrafter

PARITY = Path(__file__).parent.parent / "data" / "parity"


NAMES = ["dflash-full", "dflash-gqa-yarn", "dflash-sliding", "dflash2"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_drafts_are_the_references(name: str) -> None:
    drafter = load_drafter(PARITY / name)
    config = drafter.config
    reference = mx.load(str(PARITY / name / "reference" / "cycles.safetensors"))
    assert isinstance(reference, dict)
    cache = drafter.make_cache()
    cycles = sum(key.endswith(".start") for key in reference)
    assert cycles >= 3
    for cycle in range(cycles):
        block_ids, taps, hidden, logits, tokens, start = (
            reference[f"cycle{cycle}.{part}"]
            for part in ("block_ids", "target_hidden", "hidden", "logits", "draft_tokens", "start")
        )
        embeddings = reference["embed_tokens"][block_ids] * config.embedding_scale
        ours = drafter.hidden_states(embeddings, taps, cache)
        assert cache.length == start.item()
        assert mx.allclose(ours, hidden, rtol=0, atol=1e-3)
        our_logits = ours[:, 1:] @ reference["lm_head"].T * config.output_multiplier
        if config.logit_softcap is not None:
            our_logits = mx.tanh(our_logits / config.logit_softcap) * config.logit_softcap
        assert mx.allclose(our_logits, logits, rtol=0, atol=1e-3)
        anchor = int(block_ids[0, 0])
        drafts = greedy_drafts(drafter, ours[0, 1:], anchor, our_logits[0])
        assert mx.array_equal(drafts, tokens[0])


def greedy_drafts(drafter: Drafter, hidden: mx.array, anchor: int, logits: mx.array) -> mx.array:
    """What the drafter guesses without noise."""
    if isinstance(drafter, SecondDrafter):
        return drafter.candidate_selector.walk(hidden, anchor, logits, best)
    return mx.argmax(logits, axis=-1)


def best(_: int, ids: mx.array, scores: mx.array) -> mx.array:
    """The candidate with the largest score."""
    return mx.take_along_axis(ids, mx.argmax(scores, axis=-1, keepdims=True), axis=-1)[:, 0]


def test_the_sliding_fixture_has_a_round_with_nothing_accepted_behind_a_moved_window() -> None:
    folder = PARITY / "dflash-sliding"
    reference = mx.load(str(folder / "reference" / "cycles.safetensors"))
    assert isinstance(reference, dict)
    window = load_drafter(folder).config.sliding_window
    assert window is not None
    assert reference["cycle3.target_hidden"].shape[1] == 1
    assert bool(reference["cycle3.start"] > window)
