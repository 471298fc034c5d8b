"""The noise is a pure function of seed, turn, retry, position and token."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.engine.noise import _log, gumbel, stream_key, threefry

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_words_of_its_authors(
    key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]
) -> None:
    def numpy_word(word: int) -> np.ndarray:
        return np.array([word], np.uint32)

    def mlx_word(word: int) -> mx.array:
        return mx.array([word], mx.uint32)

    for array in (numpy_word, mlx_word):
        x, y = threefry((array(key[0]), array(key[1])), (array(counter[0]), array(counter[1])))
        assert (int(x[0]), int(y[0])) == words


def test_noise_is_the_gumbel_quantile_of_the_words_for_position_and_token() -> None:
    """Against the same formula in float64, from NumPy's Threefry."""
    key, position, tokens = (123, 456), 1000, 4096
    ids = np.arange(tokens, dtype=np.uint32)
    noise = np.array(gumbel(key, position, mx.broadcast_to(mx.arange(tokens), (3, tokens))))

    for row in range(3):
        words = (np.array([word], np.uint32) for word in (*key, position + row, 0))
        k0, k1, c0, c1 = words
        stream = threefry((k0, k1), (c0, c1))
        bits, _ = threefry(stream, (ids, np.zeros_like(ids)))
        uniform = ((bits >> 9) + 0.5) / 2**23
        np.testing.assert_allclose(noise[row], -np.log(-np.log(uniform)), rtol=2e-6, atol=2e-6)


def test_the_logarithm_is_right_from_the_smallest_to_the_largest_uniform_number() -> None:
    """The largest used to round up to 1, whose logarithm has none."""
    bits = np.concatenate([np.arange(4096), 2**23 - 1 - np.arange(4096), 2**22 + np.arange(-9, 9)])
    uniform = (bits + 0.5) / 2**23

    ours = _log(mx.array(uniform, mx.float32))

    assert uniform.astype(np.float32).max() < 1
    np.testing.assert_allclose(np.array(ours), np.log(uniform), rtol=1e-6)


def test_noise_has_the_mean_and_the_deviation_of_a_gumbel_variable() -> None:
    noise = np.array(gumbel((1, 2), 0, mx.broadcast_to(mx.arange(500), (200, 500))), np.float64)

    assert abs(noise.mean() - np.euler_gamma) < 0.02
    assert abs(noise.std() - np.pi / 6**0.5) < 0.02


@settings(max_examples=20)
@given(
    key=st.tuples(st.integers(0, ONES), st.integers(0, ONES)),
    position=st.integers(0, 2**20),
    rows=st.integers(1, 5),
    ids=st.lists(st.integers(0, 300_000), min_size=1, max_size=6),
    data=st.data(),
)
def test_noise_does_not_depend_on_what_else_is_asked(
    key: tuple[int, int], position: int, rows: int, ids: list[int], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, rows - 1))
    place = data.draw(st.integers(0, len(ids) - 1))

    together = gumbel(key, position, mx.array([ids] * rows))
    alone = gumbel(key, position + row, mx.array([[ids[place]]]))

    assert together[row, place].item() == alone[0, 0].item()


def test_seed_turn_and_retry_each_change_the_stream() -> None:
    keys = {
        stream_key(seed, turn, retry)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for turn in range(8)
        for retry in range(4)
    }

    assert len(keys) == 4 * 8 * 4


def test_a_seed_means_the_same_for_ever() -> None:
    """Who wrote a seed down wants the same reply after an upgrade, bit for bit."""
    key = stream_key(42, turn=1)

    noise = gumbel(stream_key(42), 7, mx.array([[0, 1, 49151]]))

    assert key == (646961260, 4263843367)
    assert noise.view(mx.uint32).tolist() == [[1068500986, 1073951559, 1056619188]]
