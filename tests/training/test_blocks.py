"""Anchors, labels and batches, against definitions written out as loops."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from dflash_mlx.training.blocks import (
    Schedule,
    draw_anchors,
    labels_of,
    make_batch,
    valid_anchors,
)
from dflash_mlx.training.conversations import Conversation, conversation
from tests.training.tiny import MASK, talk

BLOCK = 8


def expected_label(item: Conversation, anchor: int, k: int) -> int | None:
    """The token at anchor + k, if the answer goes on from the anchor to there."""
    place = anchor + k
    if place >= len(item) or not all(item.assistant[anchor : place + 1]):
        return None
    return int(item.ids[place])


def test_an_anchor_and_the_token_after_it_are_the_assistants() -> None:
    item = conversation(range(9), [bool(int(c)) for c in "001110110"])
    assert valid_anchors(item.assistant).tolist() == [2, 3, 6]


def test_the_first_anchor_is_the_token_that_prefill_yields() -> None:
    item = talk(5, 7)
    assert valid_anchors(item.assistant)[0] == 5


def test_a_lone_token_of_the_assistant_anchors_nothing() -> None:
    assert len(valid_anchors(talk(3, 1, 3, 1).assistant)) == 0


def test_labels_are_the_tokens_that_follow_in_the_same_answer() -> None:
    item = talk(3, 12, 2, 9, 4, 3)
    anchors = valid_anchors(item.assistant)
    labels, valid = labels_of(item, anchors, BLOCK)
    for row, anchor in enumerate(anchors):
        for k in range(1, BLOCK):
            label = expected_label(item, int(anchor), k)
            assert valid[row, k - 1] == (label is not None)
            if label is not None:
                assert labels[row, k - 1] == label


def test_drawn_anchors_are_valid_different_and_in_order() -> None:
    item = talk(10, 60, 5, 60)
    drawn = draw_anchors(item.assistant, 20, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 20
    assert drawn.tolist() == sorted(drawn.tolist())
    assert set(drawn.tolist()) <= set(valid_anchors(item.assistant).tolist())


def test_every_anchor_can_be_drawn() -> None:
    item, rng = talk(5, 20), np.random.default_rng(0)
    seen = {a for _ in range(200) for a in draw_anchors(item.assistant, 3, rng).tolist()}
    assert seen == set(valid_anchors(item.assistant).tolist())


def test_a_batch_pads_with_what_does_not_count() -> None:
    talks = [talk(3, 9), talk(2, 70)]
    places = [np.array([4], np.int32), np.array([2, 30], np.int32)]
    batch = make_batch(talks, [0, 1], places, BLOCK)
    assert batch.tokens.shape == (2, 96)
    assert batch.tokens[0, :12].tolist() == talks[0].ids.tolist()
    assert batch.valid[0, 0].any()
    assert not batch.valid[0, 1:].any()
    assert not batch.valid[1, 2:].any()


def test_a_block_is_the_anchor_and_masks() -> None:
    item = talk(3, 20)
    batch = make_batch([item], [0], [np.array([5, 9], np.int32)], BLOCK)
    blocks = batch.blocks(MASK)
    assert blocks[0, 0].tolist() == [item.ids[5]] + [MASK] * 7
    assert blocks[0, 1].tolist() == [item.ids[9]] + [MASK] * 7


@pytest.fixture
def schedule() -> Schedule:
    rng = np.random.default_rng(0)
    talks = [talk(4, int(rng.integers(20, 300)), seed=i) for i in range(40)]
    return Schedule(talks, batch_tokens=1024, anchors=6, block_size=BLOCK, seed=3)


def test_an_epoch_shows_every_conversation_once(schedule: Schedule) -> None:
    count = schedule.batches_per_epoch
    batches = list(islice(schedule.batches(), 2 * count))
    for epoch in (batches[:count], batches[count:]):
        assert sorted(row for batch in epoch for row in batch.rows) == list(range(40))


def test_a_batch_keeps_to_its_budget_with_padding_counted(schedule: Schedule) -> None:
    batches = list(islice(schedule.batches(), schedule.batches_per_epoch))
    assert max(batch.tokens.size for batch in batches) <= 1024
    useful = sum(len(schedule.conversations[row]) for batch in batches for row in batch.rows)
    assert useful > 0.75 * sum(batch.tokens.size for batch in batches)


def test_the_shapes_of_an_epoch_are_those_of_its_batches(schedule: Schedule) -> None:
    batches = islice(schedule.batches(), schedule.batches_per_epoch)
    assert schedule.shapes() == {(*b.tokens.shape, b.anchors.shape[1]) for b in batches}


def test_a_conversation_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    schedule = Schedule([talk(4, 300), talk(4, 10)], 128, 4, BLOCK, seed=0)
    assert schedule.batches_per_epoch == 2


def test_a_schedule_begun_later_goes_on_alike(schedule: Schedule) -> None:
    count = schedule.batches_per_epoch
    for start in (1, count, count + 2):
        whole = next(islice(schedule.batches(), start, None))
        late = next(schedule.batches(start))
        assert whole.rows == late.rows
        assert whole.anchors.tolist() == late.anchors.tolist()


def test_each_epoch_draws_other_anchors_and_another_order(schedule: Schedule) -> None:
    count = schedule.batches_per_epoch
    one, two = (list(islice(schedule.batches(start), count)) for start in (0, count))
    assert [batch.rows for batch in one] != [batch.rows for batch in two]
    drawn = [
        {row: batch.anchors[i].tolist() for batch in epoch for i, row in enumerate(batch.rows)}
        for epoch in (one, two)
    ]
    assert all(drawn[0][row] != drawn[1][row] for row in range(40))
