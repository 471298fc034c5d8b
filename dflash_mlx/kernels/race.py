"""Our kernels against MLX's own, timed on the machine that will run them.

Which is faster depends on chip, shapes and rows, and cannot be known without the chip. So every
case races when it first comes up, on the very arrays of that call, and its verdict is kept: a few
seconds at the first load of a model. A kernel that cannot run on this machine, or whose numbers are
wrong, has lost before it is timed. The clock is handed in, as the kernels are: a race can be tested
without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import mlx.core as mx

from ..whole_file import write_whole

Clock = Callable[[], float]
"""Seconds, from any start."""

Work = Callable[[], list[mx.array]]
"""Builds arrays, which are to be evaluated."""

REPEATS = 5
_TOLERANCE = {mx.float32: 1e-4, mx.float16: 2**-7, mx.bfloat16: 2**-5}
"""How far two right kernels may differ, relative to the largest value: sums of another order."""


@dataclass(frozen=True)
class Contest:
    """The same work by our kernel and by MLX's; `case` names what decides their speed."""

    case: str
    ours: Work
    stock: Work


@dataclass(frozen=True)
class Verdict:
    """Seconds of each; `ours` None where our kernel was out of the race, for a `reason`."""

    ours: float | None
    stock: float
    reason: str = ""

    @property
    def won(self) -> bool:
        """Whether our kernel is to be used."""
        return self.ours is not None and self.ours <= self.stock

    @property
    def why_not(self) -> str:
        """Why MLX's runs, where it does."""
        return self.reason or "MLX's is faster"


def race(contest: Contest, clock: Clock, repeats: int = REPEATS) -> Verdict:
    """Run both, compare what they give, and time them `repeats` times each."""
    expected = contest.stock()
    mx.eval(expected)
    stock = _seconds(contest.stock, clock, repeats)
    try:
        got = contest.ours()
        mx.eval(got)
        if not all(map(_agree, got, expected)):
            return Verdict(None, stock, "its numbers are wrong on this machine")
        return Verdict(_seconds(contest.ours, clock, repeats), stock)
    except (RuntimeError, ValueError) as error:
        return Verdict(None, stock, "cannot run: " + str(error).strip().split("\n")[0])


def _seconds(work: Work, clock: Clock, repeats: int) -> float:
    """The median of a few runs; what came before them has warmed everything up."""
    times = []
    for _ in range(repeats):
        begin = clock()
        mx.eval(work())
        times.append(clock() - begin)
    return median(times)


def _agree(got: mx.array, expected: mx.array) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    ours, theirs = got.astype(mx.float32), expected.astype(mx.float32)
    worst, largest = mx.abs(ours - theirs).max(), mx.abs(theirs).max()
    return bool(worst <= _TOLERANCE.get(got.dtype, 0.0) * largest)


class Referee:
    """Says of each case who runs: as it was kept in `file` (None: nowhere), or by a race now.

    The file is one chip's, one version of MLX's and one text of our kernels': see `file_name`.
    """

    def __init__(self, clock: Clock, file: Path | None = None, repeats: int = REPEATS) -> None:
        self._clock = clock
        self._repeats = repeats
        self._file = file
        self.verdicts = _read(file)

    def __call__(self, contest: Contest) -> Verdict:
        """The verdict on a case."""
        if contest.case not in self.verdicts:
            self.verdicts[contest.case] = race(contest, self._clock, self._repeats)
            self._keep()
        return self.verdicts[contest.case]

    def _keep(self) -> None:
        """Write the file; a folder that cannot be written costs a race a load, and no more."""
        if self._file is None:
            return
        every = {case: asdict(verdict) for case, verdict in self.verdicts.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(every, indent=1, sort_keys=True))
        except OSError:
            self._file = None


def file_name(chip: str, mlx_version: str, sources: str) -> str:
    """The name of the file of a chip's verdicts; `sources` stands for the text of the kernels."""
    words = f"{chip} mlx {mlx_version} kernels {sources}".lower()
    return "".join(c if c.isalnum() else "-" for c in words) + ".json"


def _read(file: Path | None) -> dict[str, Verdict]:
    """What is kept; nothing where there is no file, or none that can be read."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8")) if file else {}
        verdicts = {case: Verdict(**verdict) for case, verdict in kept.items()}
        return verdicts if all(map(_sensible, verdicts.values())) else {}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _sensible(verdict: Verdict) -> bool:
    seconds = [verdict.stock] if verdict.ours is None else [verdict.stock, verdict.ours]
    return isinstance(verdict.reason, str) and all(isinstance(s, float | int) for s in seconds)
