"""The pass over all blocks at once: the same as the cached pass, and blind to what it must not see.

These are the bugs that others shipped: the anchor's own feature visible, the context by block index
instead of position, blocks that see one another.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.drafter import Drafter
from dflash_mlx.drafter.config import SecondConfig
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.training.forward import hidden_states
from tests.training.tiny import HIDDEN, TAPS, randomize, sliding_config, tiny_config, tiny_drafter

LENGTH, ROWS = 40, 8
ANCHORS = mx.array([[0, 3, 17, 38], [1, 9, 10, 30]])


def second_drafter() -> Drafter:
    config = tiny_config(second=SecondConfig(kernel_size=2, group_size=8, rank=4, top_k=3))
    drafter = SecondDrafter(config)
    randomize(drafter, 2)
    return drafter


DRAFTERS: dict[str, Any] = {
    "full": tiny_drafter,
    "sliding, both ways": lambda: tiny_drafter(sliding_config(False)),
    "sliding, causal": lambda: tiny_drafter(sliding_config(None)),
    "full, causal": lambda: tiny_drafter(tiny_config(is_causal=True)),
    "narrow window": lambda: tiny_drafter(sliding_config(False, window=3)),
    "DFlash 2": second_drafter,
}


@pytest.fixture(params=DRAFTERS)
def drafter(request: pytest.FixtureRequest) -> Drafter:
    made: Drafter = DRAFTERS[request.param]()
    return made


def flat(tree: Any) -> dict[str, mx.array]:
    return cast("dict[str, mx.array]", tree_flatten(tree, destination={}))


def features(seed: int = 0) -> mx.array:
    return mx.random.normal((2, LENGTH, len(TAPS) * HIDDEN), key=mx.random.key(seed))


def embeddings(seed: int = 1) -> mx.array:
    return mx.random.normal((2, ANCHORS.shape[1], ROWS, HIDDEN), key=mx.random.key(seed))


def test_a_block_is_what_the_cached_pass_gives(drafter: Drafter) -> None:
    taps, blocks = features(), embeddings()
    trained = hidden_states(drafter, taps, blocks, ANCHORS)
    for i in range(2):
        for j, anchor in enumerate(ANCHORS[i].tolist()):  # type: ignore[arg-type]
            cache = drafter.make_cache()
            if anchor:
                drafter.extend(taps[i : i + 1, :anchor], cache)
            served = drafter.block(blocks[i, j][None], cache)[0]
            assert mx.allclose(trained[i, j], served, rtol=1e-4, atol=1e-5)


def test_nothing_at_or_behind_an_anchor_reaches_its_block(drafter: Drafter) -> None:
    taps, blocks = features(), embeddings()
    before = hidden_states(drafter, taps, blocks, ANCHORS)
    for j in range(ANCHORS.shape[1]):
        behind = mx.arange(LENGTH)[None, :, None] >= ANCHORS[:, j][:, None, None]
        changed = mx.where(behind, features(seed=9), taps)
        after = hidden_states(drafter, changed, blocks, ANCHORS)
        assert mx.array_equal(before[:, j], after[:, j])


def test_what_stands_before_an_anchor_does_reach_its_block(drafter: Drafter) -> None:
    taps, blocks = features(), embeddings()
    before = hidden_states(drafter, taps, blocks, ANCHORS)
    changed = mx.array(taps)
    changed[:, 16] = 0  # the last row of context of anchor 17
    after = hidden_states(drafter, changed, blocks, ANCHORS)
    assert not mx.allclose(before[0, 2], after[0, 2])


def test_no_block_sees_another(drafter: Drafter) -> None:
    taps, blocks = features(), embeddings()
    before = hidden_states(drafter, taps, blocks, ANCHORS)
    changed = embeddings(seed=5)
    changed[:, 2] = blocks[:, 2]
    after = hidden_states(drafter, taps, changed, ANCHORS)
    assert mx.array_equal(before[:, 2], after[:, 2])
    assert not mx.allclose(before[:, 1], after[:, 1])


def test_the_order_of_anchors_does_not_matter() -> None:
    drafter, taps, blocks = tiny_drafter(), features(), embeddings()
    order = mx.array([2, 0, 3, 1])
    plain = hidden_states(drafter, taps, blocks, ANCHORS)
    turned = hidden_states(drafter, taps, blocks[:, order], ANCHORS[:, order])
    assert mx.allclose(plain[:, order], turned, atol=1e-5)


def test_a_padded_sequence_gives_the_same_blocks(drafter: Drafter) -> None:
    taps, blocks = features(), embeddings()
    longer = mx.concatenate([taps, mx.full((2, 24, taps.shape[2]), 1e4)], axis=1)
    plain = hidden_states(drafter, taps, blocks, ANCHORS)
    assert mx.allclose(plain, hidden_states(drafter, longer, blocks, ANCHORS), atol=1e-5)


def test_an_anchor_without_any_context_stays_finite(drafter: Drafter) -> None:
    def total(parameters: Any) -> mx.array:
        drafter.update(parameters)
        hidden = hidden_states(drafter, features(), embeddings(), mx.zeros((2, 4), mx.int32))
        return hidden.square().sum()

    weights = drafter.parameters()
    value, gradients = mx.value_and_grad(total)(weights)
    assert mx.isfinite(value)
    for gradient in flat(gradients).values():
        assert mx.isfinite(gradient).all()


def test_every_weight_of_the_drafter_is_trained() -> None:
    drafter = tiny_drafter()

    def total(parameters: Any) -> mx.array:
        drafter.update(parameters)
        hidden = hidden_states(drafter, features(), embeddings(), ANCHORS)
        return (hidden * embeddings(seed=7)).sum()

    for name, gradient in flat(mx.grad(total)(drafter.parameters())).items():
        assert mx.abs(gradient).max() > 0, name
