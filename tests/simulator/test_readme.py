"""metal/README.md tells the truth: its example runs, prints what it says, and breaks as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "metal" / "README.md").read_text()
EXAMPLE, PRINTED, RACE = re.findall(r"^```(?:python)?\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_example_runs_and_prints_what_the_page_shows() -> None:
    result = run(EXAMPLE)
    assert result.returncode == 0, result.stderr
    # Integer arithmetic is clang's own business, and differs between versions and machines.
    number = re.compile(r"integer \d+")
    assert number.sub("integer", result.stdout) == number.sub("integer", PRINTED)


def test_without_the_barrier_it_fails_as_the_page_shows() -> None:
    barrier = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    assert barrier in EXAMPLE
    result = run(EXAMPLE.replace(barrier, ""))
    assert result.returncode == 1
    assert result.stderr.endswith(RACE)


@pytest.mark.parametrize("path", re.findall(r"^\| `([\w./`, ]+)` \|", README, re.MULTILINE))
def test_the_files_that_the_page_names_exist(path: str) -> None:
    for name in path.replace("`", "").split(", "):
        assert (ROOT / "metal" / "simulator" / name).exists()
