"""What every test stands on: MLX's own BLAS in this process, and the program in another."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

# The examples are the same on every run, and none fails for a slow machine.
settings.register_profile("dflash", deadline=None, derandomize=True)
settings.load_profile("dflash")


def pytest_configure(config: pytest.Config) -> None:
    """Identity is a law of MLX's own BLAS: one row and k rows give the same bits."""
    from dflash_mlx.backend import prepare

    prepare(exact=sys.platform == "linux")


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """`run_cli("generate", "-p", "hi", home=True)`: the program in a process of its own.

    Keyword arguments: `env` adds to the environment (None removes a variable), `home=True` moves
    the home and cache folders into the test's own, `stdin` is what it reads, `timeout` seconds.
    """

    def run(
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        home: bool = False,
        stdin: str | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT)}
        if home:
            variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
        variables |= env or {}
        return subprocess.run(
            [sys.executable, "-m", "dflash_mlx", *arguments],
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text file can be begun, and nothing written to it."""

    def full(self: Path, text: str, encoding: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
