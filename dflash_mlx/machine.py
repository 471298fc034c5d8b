"""What figures depend on: the chip and the versions, for reports."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ._version import __version__
from .hub.fit import GIB, this_machine

PACKAGES = ("mlx", "mlx-metal", "mlx-cpu", "mlx-lm", "transformers")
"""What decides how MLX computes and which models load; of the second and third a system has one."""


def chip() -> str:
    """The chip, its memory, and the system, such as "Apple M2 Pro, 16 GB, macOS-15.1-arm64"."""
    memory = f"{this_machine().memory / GIB:.0f} GB"
    return ", ".join([_name() or platform.machine(), memory, platform.platform()])


def versions() -> dict[str, str]:
    """Versions of this program, of Python, and of those of `PACKAGES` that are installed."""
    found = {"dflash-mlx": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _name() -> str:
    """The chip's own name; empty where the system does not tell."""
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
