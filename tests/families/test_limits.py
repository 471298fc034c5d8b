"""What a drafter was not made for: numbers too large for its dtype, contexts beyond its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from dflash_mlx.drafter import Drafter
from dflash_mlx.engine.decode import verify
from dflash_mlx.engine.drafting import NOT_FINITE
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.errors import DFlashError
from dflash_mlx.pair import Pair
from tests.tiny_folders import tiny_pair

HOT = Sampling(temperature=0.8)


def with_drafter(pair: Pair, drafter: Drafter, **configuration: Any) -> Pair:
    """The pair with another drafter."""
    return replace(
        pair, drafter=drafter, configuration=replace(pair.configuration, **configuration)
    )


def drafter_of(pair: Pair, **changes: Any) -> Drafter:
    """The pair's drafter, of a config with some `changes`."""
    assert pair.drafter is not None
    drafter = Drafter(replace(pair.drafter.config, **changes))
    drafter.update(pair.drafter.parameters())
    return drafter


def test_values_beyond_float16_are_an_error_that_names_it() -> None:
    """Report 21: they would only reject every draft, silently, at a third of the speed."""
    pair = tiny_pair()
    drafter = drafter_of(pair)
    drafter.hidden_norm.weight = drafter.hidden_norm.weight * 3e4
    drafter.update(tree_map(lambda array: array.astype(mx.float16), drafter.parameters()))
    overflowing = with_drafter(pair, drafter, draft_dtype="float16")

    with pytest.raises(DFlashError, match=r"not finite in float16: choose another --dtype"):
        list(stream(overflowing, overflowing.context(), [40, 41, 42], Options(max_tokens=20)))

    events = list(
        stream(overflowing, overflowing.context(), [40, 41], Options(draft=False, max_tokens=3))
    )
    assert events[-1].finish_reason == "length"


def test_processors_do_not_hide_it() -> None:
    chooser = Chooser(Sampling(), (0, 0), (lambda tokens, logits: logits,))

    with pytest.raises(FloatingPointError):
        verify(mx.zeros([3, 8]), [1], mx.array([1, NOT_FINITE, NOT_FINITE]), chooser)


def test_contexts_beyond_the_drafters_go_on_and_one_line_says_so() -> None:
    """Report 79: prompts of 40, 100 and 40 tokens on a drafter made for 64."""
    pair = tiny_pair()
    short = with_drafter(pair, drafter_of(pair, max_position_embeddings=64))
    context = short.context()
    for length, notes in ((40, 0), (100, 1), (40, 0)):
        prompt = [(7 * i + length) % 250 for i in range(length)]
        options = Options(sampling=HOT, seed=1, max_tokens=10)
        plain = list(stream(pair, pair.context(), prompt, replace(options, draft=False)))

        events = list(stream(short, context, prompt, options))

        assert [t for e in events for t in e.tokens] == [t for e in plain for t in e.tokens]
        stats = events[-1].stats
        assert len(stats.drafted) > 0
        said = [note for note in stats.configuration.notes if "contexts of 64 tokens" in note]
        assert len(said) == notes
