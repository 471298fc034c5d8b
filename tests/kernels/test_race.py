"""The race: who is right and fast runs, verdicts are kept, and a broken kernel harms nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.kernels.accept import accept
from dflash_mlx.kernels.block_matmul import Weights, block_matmul
from dflash_mlx.kernels.metal import Metal
from dflash_mlx.kernels.projection import Projection
from dflash_mlx.kernels.race import Contest, Referee, Verdict, file_name, race


class Stopwatch:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float, gives: float = 1.0) -> Any:
        """Something that takes so long and gives so much."""

        def run() -> list[mx.array]:
            self.now += seconds
            return [mx.full((4,), gives)]

        return run


@pytest.mark.parametrize(("ours", "won"), [(1.0, True), (3.0, False)])
def test_the_faster_wins(ours: float, won: bool) -> None:
    watch = Stopwatch()
    verdict = race(Contest("a case", watch.work(ours), watch.work(2.0)), watch)
    assert verdict == Verdict(ours, 2.0)
    assert verdict.won is won


def test_wrong_numbers_are_out_of_the_race() -> None:
    watch = Stopwatch()
    verdict = race(Contest("a case", watch.work(1.0, gives=1.001), watch.work(2.0)), watch)
    assert not verdict.won
    assert verdict.why_not == "its numbers are wrong on this machine"


def test_numbers_that_are_none_are_wrong() -> None:
    watch = Stopwatch()
    assert not race(Contest("a case", watch.work(1.0, gives=mx.nan), watch.work(2.0)), watch).won


def test_a_kernel_that_cannot_run_is_out_of_the_race_and_says_why() -> None:
    def broken() -> list[mx.array]:
        raise RuntimeError("[metal::Device] Unable to build metal library\nerror: line 3")

    watch = Stopwatch()
    verdict = race(Contest("a case", broken, watch.work(2.0)), watch)
    assert verdict.why_not == "cannot run: [metal::Device] Unable to build metal library"


def test_a_case_races_once_and_its_verdict_is_kept(tmp_path: Path) -> None:
    watch, file = Stopwatch(), tmp_path / "races" / "chip.json"
    contest = Contest("a case", watch.work(1.0), watch.work(2.0))
    referee = Referee(watch, file)
    first = referee(contest)
    passed = watch.now
    assert referee(contest) == first
    assert Referee(watch, file)(contest) == first
    assert watch.now == passed, "nobody ran again"
    assert [path.name for path in file.parent.iterdir()] == ["chip.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"a case": 3}',
        '{"a case": {"fast": 1}}',
        '{"a case": {"ours": "1", "stock": 2}}',
    ],
)
def test_a_file_that_is_none_of_ours_is_raced_anew(text: str, tmp_path: Path) -> None:
    file = tmp_path / "chip.json"
    file.write_text(text)
    watch = Stopwatch()
    assert Referee(watch, file)(Contest("a case", watch.work(1.0), watch.work(2.0))).won


def test_a_folder_that_cannot_be_written_is_no_misfortune(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    watch = Stopwatch()
    referee = Referee(watch, tmp_path / "file" / "chip.json")
    assert referee(Contest("a case", watch.work(1.0), watch.work(2.0))).won


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_left_with_no_part_of_a_file(tmp_path: Path) -> None:
    watch = Stopwatch()
    Referee(watch, tmp_path / "chip.json")(Contest("a case", watch.work(1.0), watch.work(2.0)))
    assert list(tmp_path.iterdir()) == []


def test_another_process_writes_its_own_part(tmp_path: Path) -> None:
    """Two that load a pair at once would else write into one file."""
    other = tmp_path / "chip.part"
    other.write_text("half of wh")
    watch = Stopwatch()
    Referee(watch, tmp_path / "chip.json")(Contest("a case", watch.work(1.0), watch.work(2.0)))
    assert other.read_text() == "half of wh"


def test_verdicts_are_one_chips_and_one_versions() -> None:
    names = {
        file_name(*facts)
        for facts in [("M1", "0.32.4", "a"), ("M2", "0.32.4", "a"), ("M1", "0.33", "a")]
    }
    assert len(names | {file_name("M1", "0.32.4", "b")}) == 4
    assert (
        file_name("Apple M4 Pro", "0.32.4", "ab12") == "apple-m4-pro-mlx-0-32-4-kernels-ab12.json"
    )


def no_kernels(**_: Any) -> Any:
    """A GPU whose compiler refuses everything."""

    def call(**_: Any) -> list[mx.array]:
        raise RuntimeError("cannot be built")

    return call


@pytest.fixture
def broken() -> Metal:
    """Kernels that cannot run, and a referee."""
    return Metal(no_kernels, Referee(Stopwatch()))


def test_ops_that_lost_are_their_twins_and_say_so(broken: Metal) -> None:
    weights = Weights(mx.random.normal((64, 32)))
    x = mx.random.normal((5, 32))
    assert mx.array_equal(block_matmul(x, weights, metal=broken), x @ weights.matrix.T)
    tokens = mx.array([1, 2, 3], mx.int32)
    assert accept(tokens, tokens, metal=broken).tolist() == [0, 1, -1, -1]
    assert broken.ran == {
        "block_matmul: twin, cannot run: cannot be built": 1,
        "accept: twin, cannot run: cannot be built": 1,
    }


def test_a_projection_whose_kernel_lost_calls_its_layers(broken: Metal) -> None:
    layers = [nn.Linear(32, 16, bias=False), nn.Linear(32, 8, bias=False)]
    x = mx.random.normal((1, 5, 32))
    expected = mx.concatenate([layer(x) for layer in layers], axis=-1)
    assert mx.array_equal(Projection(layers, broken)(x), expected)
