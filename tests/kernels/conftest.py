"""Kernels under test run in the simulator, which the ops are given instead of MLX's Metal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "metal"))

from simulator import MODELS, Simulator

from dflash_mlx.kernels.metal import Metal


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulator: needs clang, to run Metal kernels on the CPU")


@pytest.fixture(scope="session")
def simulators() -> dict[str, Simulator]:
    """A simulator for each model of what Metal leaves open."""
    return {name: Simulator(model) for name, model in MODELS.items()}


@pytest.fixture(scope="session")
def simulator(simulators: dict[str, Simulator]) -> Simulator:
    """The simulator of the default model."""
    return simulators["default"]


@pytest.fixture(scope="session")
def metals(simulators: dict[str, Simulator]) -> dict[str, Metal]:
    """Our kernels under each model of arithmetic; compiled ones are kept for the session."""
    return {name: Metal(simulator.metal_kernel) for name, simulator in simulators.items()}


@pytest.fixture(scope="session")
def metal(metals: dict[str, Metal]) -> Metal:
    """Our kernels under the default model."""
    return metals["default"]


@pytest.fixture
def counted_metal(metal: Metal) -> Metal:
    """Our kernels under the default model, of which none has run yet."""
    metal.ran.clear()
    return metal
