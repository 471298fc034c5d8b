"""A sliding window's cache: what it shows, what it keeps, and how far back it reaches."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.target.caches import SlidingCache

WINDOW = 24


def rows(begin: int, end: int) -> mx.array:
    """Rows [1, 1, n, 4] that hold their own positions."""
    return mx.broadcast_to(mx.arange(begin, end).reshape(1, 1, -1, 1), (1, 1, end - begin, 4)) * 1.0


def feed(cache: SlidingCache, count: int) -> tuple[list[int], list[list[int]]]:
    """Append rows; the positions that are shown, and those that every new row sees."""
    begin = cache.offset
    mask = cache.make_mask(count, window_size=WINDOW)
    keys, values = cache.update_and_fetch(rows(begin, begin + count), -rows(begin, begin + count))
    assert mx.array_equal(keys, -values).item()
    positions: Any = keys[0, 0, :, 0].tolist()
    shown = [int(position) for position in positions]
    if not isinstance(mask, mx.array):
        seen = [[p for p in shown if p <= begin + i] for i in range(count)]
    else:
        assert mask.shape == (count, len(shown))
        masked: Any = mask.tolist()
        seen = [[p for p, on in zip(shown, row, strict=True) if on] for row in masked]
    return shown, seen


@pytest.mark.parametrize("sizes", [(1,) * 90, (5,) * 30, (70, 1, 1, 9, 40, 1), (24, 1, 23, 25)])
def test_a_row_sees_itself_and_the_window_before_it(sizes: tuple[int, ...]) -> None:
    cache = SlidingCache(WINDOW)
    cache.step = 16
    for size in sizes:
        begin = cache.offset

        _, seen = feed(cache, size)

        for i in range(size):
            position = begin + i
            assert seen[i] == list(range(max(0, position - WINDOW + 1), position + 1))


def test_a_narrower_window_than_the_caches_is_masked() -> None:
    cache = SlidingCache(WINDOW)
    feed(cache, 40)

    mask = cache.make_mask(1, window_size=4)

    assert isinstance(mask, mx.array)
    assert mask[0, -4:].tolist() == [True] * 4
    assert mask.sum().item() == 4


def test_200_blocks_leave_it_no_longer_than_the_window_needs() -> None:
    """Report 75."""
    cache = SlidingCache(WINDOW)
    for _ in range(200):
        shown, _ = feed(cache, 8)
        cache.rewind(cache.offset - 3)
        assert len(shown) <= WINDOW + 8 + 15

    assert cache.offset == 1000
    assert cache.nbytes <= 2 * 4 * 4 * 768


@pytest.mark.parametrize("back", range(1, 9))
def test_it_goes_back_over_any_block_however_full(back: int) -> None:
    cache = SlidingCache(WINDOW)
    cache.step = 16
    for _ in range(40):
        feed(cache, 8)
        cache.rewind(cache.offset - back)
        _, seen = feed(cache, 1)
        assert len(seen[0]) == min(WINDOW, cache.offset)


def test_it_refuses_to_go_where_rows_are_gone() -> None:
    """Better than mlx-lm's ring, whose trim returns as if it had (report 1)."""
    cache = SlidingCache(WINDOW)
    cache.step = 16
    for _ in range(20):
        feed(cache, 8)

    assert not cache.reaches(WINDOW)
    assert not cache.reaches(-1)
    assert not cache.reaches(161)
    with pytest.raises(ValueError, match="a window of 24 rows cannot be rewound from 160 to 24"):
        cache.rewind(WINDOW)
    assert cache.offset == 160


def test_what_was_saved_outlives_any_number_of_rows() -> None:
    cache = SlidingCache(WINDOW)
    feed(cache, 50)
    saved = cache.save(lasting=True)
    feed(cache, 600)

    for _ in range(2):
        cache.restore(saved)
        assert feed(cache, 1)[1] == [list(range(27, 51))]
        feed(cache, 100)
