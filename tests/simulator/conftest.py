"""The simulator lives beside the Metal sources, not in the package: tests find it here.

Every test of this folder carries the marker `simulator`. Without clang they fail and say how to
install it; who wants to do without runs `pytest -m "not simulator"`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "metal"))

from simulator import Simulator
from simulator.stock import Stock

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulator: needs clang, to run Metal kernels on the CPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.simulator)


@pytest.fixture
def simulator() -> Simulator:
    """A fresh simulator; compiled kernels are shared by all through the cache."""
    return Simulator()


@pytest.fixture
def stock(simulator: Simulator) -> Stock:
    """MLX's own kernels in the simulator."""
    return Stock(simulator.toolchain)
