"""clang: found, asked once, and missed in words that help."""

from __future__ import annotations

import os
import time
from pathlib import Path

import mlx.core as mx
import pytest
from simulator import Simulator, ToolchainMissing


def test_without_clang_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(Path(p).exists() for p in ("/opt/homebrew/opt/llvm@19", "/usr/local/opt/llvm@19")):
        pytest.skip("clang is where Homebrew puts it")
    with pytest.raises(ToolchainMissing, match="apt-get install clang-19"):
        Simulator()


def test_a_kernel_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    def run() -> float:
        simulator = Simulator(cache=tmp_path)
        kernel = simulator.metal_kernel("once", ["x"], ["y"], "y[0] = x[0];")
        begun = time.perf_counter()
        kernel(
            inputs=[mx.zeros(32)],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )
        return time.perf_counter() - begun

    first = run()
    made = sorted(tmp_path.iterdir())
    assert run() < first
    assert sorted(tmp_path.iterdir()) == made
    assert all(os.access(path, os.R_OK) for path in made)
