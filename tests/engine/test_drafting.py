"""How a drafter's block is put together, and how its rows become drafts."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.drafter import Drafter
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import as_ints
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from tests.tiny import KEY, MASK, Passes, drafter_rows, same_bits, tiny_drafter, tiny_target

TARGET = tiny_target("qwen3")
PROMPT = [(11 * i + 5) % 120 for i in range(20)]
ROWS = 16
CHOOSER = Chooser(Sampling(temperature=1.0), KEY)


def drafting_of(drafter: Drafter) -> BlockDrafting:
    """This drafter after the prompt, but for its last token, the anchor."""
    drafting = BlockDrafting(TARGET, drafter)
    Context(TARGET, drafting).prefill(PROMPT[:-1], draft=True)
    return drafting


def with_scales(**changes: float) -> Drafter:
    """The tiny drafter, its config altered."""
    drafter = Drafter(replace(tiny_drafter().config, **changes))  # type: ignore[arg-type]
    drafter.update(tiny_drafter().parameters())
    return drafter


def test_row_k_of_anchor_and_masks_predicts_the_token_k_places_on() -> None:
    drafting = drafting_of(tiny_drafter())
    table = TARGET.model.model.embed_tokens.weight

    def expected(anchor: int, mask: int) -> list[int]:
        embeddings = mx.stack([table[anchor]] + [table[mask]] * (ROWS - 1))[None]
        hidden = tiny_drafter().block(embeddings, drafting.context())
        return as_ints(CHOOSER.draft(TARGET.model.lm_head(hidden)[0, 1:], PROMPT))

    drafts = drafting.propose(PROMPT, ROWS, CHOOSER)

    assert drafts.dtype == mx.int32
    assert as_ints(drafts) == expected(PROMPT[-1], MASK)
    assert as_ints(drafts) != expected(PROMPT[-2], MASK), "another anchor must matter"
    assert as_ints(drafts) != expected(PROMPT[-1], MASK - 1), "another mask must matter"


def test_a_drafter_may_scale_embeddings_and_logits() -> None:
    """Newer configs do (dflash.md, section 2); a softcap or a factor matters when sampling."""
    drafter = with_scales(embedding_scale=3.0, output_multiplier=0.5, logit_softcap=2.0)
    drafting = drafting_of(drafter)
    embeddings = TARGET.embed(mx.array([[PROMPT[-1]] + [MASK] * (ROWS - 1)])) * 3
    logits = TARGET.head(drafter.block(embeddings, drafting.context())[:, 1:]) / 2
    expected = CHOOSER.draft(2 * mx.tanh(logits / 2)[0], PROMPT).tolist()

    assert drafting.propose(PROMPT, ROWS, CHOOSER).tolist() == expected
    for plainer in ({"output_multiplier": 0.5}, {"logit_softcap": 2.0}, {"embedding_scale": 3.0}):
        other = drafting_of(with_scales(**plainer))
        assert other.propose(PROMPT, ROWS, CHOOSER).tolist() != expected


def test_a_block_of_one_row_has_no_drafts() -> None:
    drafts = drafting_of(tiny_drafter()).propose(PROMPT, 1, CHOOSER)

    assert (drafts.shape, drafts.dtype) == ((0,), mx.int32)


def test_drafting_leaves_the_context_as_it_was() -> None:
    drafting, untouched = drafting_of(tiny_drafter()), drafting_of(tiny_drafter())
    first = drafting.propose(PROMPT, ROWS, CHOOSER).tolist()

    assert drafting.length == len(PROMPT) - 1
    assert same_bits(drafter_rows(drafting), drafter_rows(untouched))
    assert drafting.propose(PROMPT, ROWS, CHOOSER).tolist() == first


def test_taps_wait_until_a_draft_needs_them() -> None:
    """Steps of one row, as in plain decoding, cost the drafter no pass each."""
    drafter = Passes()
    drafting = drafting_of(drafter)
    at_once = BlockDrafting(TARGET, tiny_drafter())
    taps = TARGET.forward(mx.array([PROMPT]), TARGET.make_cache())[1]
    assert taps is not None
    drafting.rewind(0)
    at_once.extend(taps)
    drafter.rows.clear()
    for place in range(len(PROMPT)):
        drafting.extend(taps[:, place : place + 1])

    assert (drafting.length, drafter.rows) == (len(PROMPT), [])
    drafts = drafting.propose([*PROMPT, 7], ROWS, CHOOSER).tolist()
    assert drafter.rows == [len(PROMPT)]
    assert drafts == at_once.propose([*PROMPT, 7], ROWS, CHOOSER).tolist()
    assert same_bits(drafter_rows(drafting), drafter_rows(at_once))


def test_no_more_than_a_pass_of_taps_waits() -> None:
    drafter = Passes()
    drafting = BlockDrafting(TARGET, drafter)
    row = mx.ones([1, 1, len(TARGET.tap_ids) * TARGET.hidden_size])
    for _ in range(100):
        drafting.extend(row)

    assert drafter.rows == [32, 32, 32]
    assert len(drafting.arrays) == 2 * 2 + 4


@pytest.mark.parametrize("length", [0, 5, 20, 23, 30])
def test_taps_that_wait_can_be_taken_back(length: int) -> None:
    drafting, fresh = (BlockDrafting(TARGET, tiny_drafter()) for _ in range(2))
    tokens = [(7 * i + 3) % 120 for i in range(30)]
    taps = TARGET.forward(mx.array([tokens]), TARGET.make_cache())[1]
    assert taps is not None
    for place in range(30):
        drafting.extend(taps[:, place : place + 1])
        if place == 19:
            drafting.context()

    assert drafting.reaches(length)
    drafting.rewind(length)
    fresh.extend(taps[:, :length])

    assert drafting.length == length
    if length:
        assert same_bits(drafter_rows(drafting), drafter_rows(fresh))


def test_an_interrupted_pass_over_taps_is_made_again() -> None:
    drafter = Passes()
    drafting = BlockDrafting(TARGET, drafter)
    drafting.extend(mx.ones([1, 3, len(TARGET.tap_ids) * TARGET.hidden_size]))
    begin, drafter.layers = drafter.layers, []  # an error where the layers are asked
    with pytest.raises(ValueError, match="zip"):
        drafting.context()
    drafter.layers = begin

    assert (drafting.length, drafting.context().length) == (3, 3)
