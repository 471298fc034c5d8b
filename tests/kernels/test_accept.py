"""The kernel and its twin count the right drafts alike, at every length of a block."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import Simulator

from dflash_mlx.kernels.accept import accept, twin
from dflash_mlx.kernels.metal import Metal


def by_hand(choices: list[int], block: list[int]) -> list[int]:
    accepted = 0
    while accepted + 1 < len(block) and choices[accepted] == block[accepted + 1]:
        accepted += 1
    return [accepted, *choices[: accepted + 1], *[-1] * (len(block) - accepted - 1)]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_the_twin_accepts_the_longest_right_prefix(rows: list[tuple[int, int]]) -> None:
    choices, block = [list(column) for column in zip(*rows, strict=True)]
    assert twin(mx.array(choices), mx.array(block)).tolist() == by_hand(choices, block)


# 7 and 8 rows: MLX passes an input of fewer than 8 elements in another address space.
@pytest.mark.simulator
@pytest.mark.parametrize("rows", [1, 7, 8, 32])
def test_the_kernel_accepts_every_prefix(rows: int, metal: Metal) -> None:
    choices = list(range(100, 100 + rows))
    for wrong in {0, rows // 2, rows - 1}:
        block = [5, *choices[:-1]]
        if wrong + 1 < rows:
            block[wrong + 1] = 7
        result = accept(mx.array(choices), mx.array(block), metal=metal)
        assert result.tolist() == by_hand(choices, block)


@pytest.mark.simulator
@settings(max_examples=20)
@given(data=st.data())
def test_the_kernel_is_its_twin(data: st.DataObject, metal: Metal) -> None:
    rows = data.draw(st.sampled_from([1, 2, 7, 8, 9, 31, 32]))
    tokens = st.lists(st.integers(0, 1), min_size=rows, max_size=rows)
    choices, block = mx.array(data.draw(tokens)), mx.array(data.draw(tokens))
    assert accept(choices, block, metal=metal).tolist() == twin(choices, block).tolist()


@pytest.mark.simulator
def test_one_launch_reads_each_token_once(metal: Metal, simulator: Simulator) -> None:
    with simulator.counting() as counts:
        accept(mx.arange(8), mx.arange(8), metal=metal)
    assert counts.launches == 1
    assert counts.buffers["block"].read_bytes == 7 * 4


def test_longer_blocks_take_the_twin_and_it_is_told() -> None:
    metal = Metal()
    tokens = mx.array(np.arange(33, dtype=np.int32))
    assert accept(tokens, tokens, metal=metal).tolist() == twin(tokens, tokens).tolist()
    assert metal.ran == {"accept: twin, more than 32 rows": 1}
