"""The limits on a Mac's memory: from 8 to 128 GB something is always left, and all is set back."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import mlx.core as mx
import pytest

from dflash_mlx.engine.memory import GIB, Limits, hold, limits, machine_limits, reserve
from tests.tiny_folders import tiny_pair

# GiB: memory, Metal's working set, weights; then what is wired, allowed in all, and kept for reuse.
TABLE = [
    (8, 5.3, 1, 2.0, 6, 0.5),
    (8, 5.3, 4.5, 4.77, 6, 0.5),
    (16, 10.7, 4.5, 5.625, 14, 1),
    (16, 10.7, 10, 9.63, 14, 1),
    (32, 21.3, 17, 19.17, 28, 2),
    (64, 48, 17, 21.25, 56, 4),
    (64, 60, 60, 54, 56, 4),
    (128, 96, 70, 86.4, 112, 4),
    (128, 126, 120, 112, 112, 4),
]


@pytest.mark.parametrize(("memory", "working_set", "weights", "wired", "most", "cache"), TABLE)
def test_the_limits(
    memory: float, working_set: float, weights: float, wired: float, most: float, cache: float
) -> None:
    found = limits(int(weights * GIB), int(memory * GIB), int(working_set * GIB))

    assert found.wired / GIB == pytest.approx(wired, abs=0.01)
    assert found.memory / GIB == pytest.approx(most, abs=0.01)
    assert found.cache / GIB == pytest.approx(cache, abs=0.01)


@pytest.mark.parametrize("memory", [8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 512])
@pytest.mark.parametrize("weights", [0.1, 1, 4, 16, 60, 200])
def test_a_reserve_is_always_left(memory: int, weights: float) -> None:
    """Even where Metal would give all that there is (reports 87, 88)."""
    size = memory * GIB
    for working_set in (size * 2 // 3, size * 3 // 4, size):
        found = limits(int(weights * GIB), size, working_set)

        assert 0 < found.wired <= min(working_set * 0.9, size - reserve(size))
        assert found.memory <= size - reserve(size)
        assert found.cache <= size / 16
    assert reserve(size) >= max(2 * GIB, size // 8)


def test_without_metal_there_are_none() -> None:
    assert machine_limits(GIB, {"device_name": "some CPU"}) is None
    assert (
        machine_limits(GIB, {"memory_size": 8 * GIB, "max_recommended_working_set_size": 0}) is None
    )


def test_on_metal_they_come_from_what_the_device_says() -> None:
    device = {"memory_size": 16 * GIB, "max_recommended_working_set_size": 11 * GIB}

    assert machine_limits(GIB, device) == limits(GIB, 16 * GIB, 11 * GIB)


BEFORE = Limits(wired=0, memory=100, cache=50)


@dataclass
class Allocator:
    """Remembers its limits, as MLX does."""

    now: Limits = BEFORE

    def _set(self, name: str, limit: int) -> int:
        before = int(getattr(self.now, name))
        self.now = replace(self.now, **{name: limit})
        return before

    def set_wired_limit(self, limit: int) -> int:
        return self._set("wired", limit)

    def set_memory_limit(self, limit: int) -> int:
        return self._set("memory", limit)

    def set_cache_limit(self, limit: int) -> int:
        return self._set("cache", limit)


def test_what_was_set_is_set_back() -> None:
    allocator, wanted = Allocator(), Limits(30, 80, 5)

    release = hold(wanted, allocator)
    assert allocator.now == wanted
    release()

    assert allocator.now == BEFORE


def test_a_pair_holds_the_limits_as_long_as_it_lives() -> None:
    allocator = Allocator()
    pair = replace(tiny_pair())
    device = {"memory_size": 16 * GIB, "max_recommended_working_set_size": 11 * GIB}

    pair.hold_memory(device, allocator)
    assert allocator.now.cache == GIB
    del pair
    gc.collect()

    assert allocator.now == BEFORE


def test_on_a_cpu_a_pair_sets_nothing() -> None:
    allocator = Allocator()

    replace(tiny_pair()).hold_memory(mx.device_info() | {"memory_size": GIB}, allocator)

    assert allocator.now == BEFORE
