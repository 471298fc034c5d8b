"""A conversion that is stopped, killed or out of room: the folder is whole or absent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_lm.utils import load_model

from tests.conftest import ROOT
from tests.convert.tiny_models import (
    convert,
    names,
)


def command(source: Path, output: Path) -> list[str]:
    arguments = ["convert", str(source), "-o", str(output), "-q"]
    return [sys.executable, "-m", "dflash_mlx", *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_file_beyond_the_limit_leaves_nothing(source: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(source, tmp_path / "ours"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 1
    assert "would pass the limit on file sizes: raise it (ulimit -f)" in done.stderr
    assert names(tmp_path) == {"place"}


WORKER = """
import os, random, signal, sys, time
from pathlib import Path
from dflash_mlx.backend import prepare
prepare(exact=True)
from dflash_mlx.commands.convert import _Job, run
from dflash_mlx.commands.convert_arguments import ConvertArguments
def slowly(self, done, total):
    print(done, flush=True)
    time.sleep(0.02)
_Job.writing = slowly
arguments = ConvertArguments(source=sys.argv[1], output=Path(sys.argv[2]), quantize=True)
def convert():
    run(arguments, prepare(exact=True))
"""
"""A conversion of about a second, in a process of its own."""

KILLS = """
moments = random.Random(3)
for _ in range(10):
    progress, told = os.pipe()
    child = os.fork()  # nothing has been computed yet, so MLX has no threads to lose
    if child == 0:
        os.close(progress)
        os.dup2(told, 1)
        convert()
        os._exit(0)
    os.close(told)
    with os.fdopen(progress) as tensors:
        for _ in zip(range(moments.randrange(60)), tensors):  # of 48; then it is tried
            pass
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("found", *sorted(path.name for path in Path(sys.argv[2]).parent.iterdir()), flush=True)
"""


def begin(source: Path, output: Path, then: str) -> subprocess.Popen[str]:
    """Python that knows how to `convert()`, and does `then`."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER + then, str(source), str(output)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_killed_at_any_moment_the_folder_is_whole_or_absent(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "ours"
    said, _ = begin(source, output, KILLS).communicate(timeout=120)
    found = [set(x.split()[1:]) for x in said.splitlines() if x.startswith("found")]
    assert len(found) == 10
    assert all(names <= {"place", "ours", ".ours.partial"} for names in found)
    assert sum(".ours.partial" in names for names in found) > 3
    if output.exists():
        load_model(output)
    convert(source, output, quantize=True, force=True)
    assert names(tmp_path) == {"place", "ours"}
    load_model(output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing_behind(
    number: signal.Signals, source: Path, tmp_path: Path
) -> None:
    process = begin(source, tmp_path / "ours", "convert()")
    assert process.stdout
    process.stdout.readline()  # the first tensor is written
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert names(tmp_path) == {"place"}
