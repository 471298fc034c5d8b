"""What rounds cost: lines between what was measured, and the file that keeps it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from dflash_mlx.engine.costs import Costs, costs_file, read_costs, write_costs

AT_100 = {1: (10.0, 0.0), 4: (13.0, 2.0), 8: (21.0, 2.4)}
AT_1100 = {1: (20.0, 0.0), 4: (33.0, 3.0), 8: (61.0, 3.4)}


def test_rows_between_those_measured_lie_on_a_line() -> None:
    costs = Costs(8, {100: AT_100}).at(100)

    assert costs.verify == [10, 11, 12, 13, 15, 17, 19, 21]
    assert costs.draft == pytest.approx([0, 2 / 3, 4 / 3, 2, 2.1, 2.2, 2.3, 2.4])


def test_so_do_lengths_and_beyond_the_last_the_line_goes_on() -> None:
    costs = Costs(8, {1100: AT_1100, 100: AT_100})

    assert costs.at(50).verify[0] == 10
    assert costs.at(600).verify[7] == pytest.approx(41)
    assert costs.at(2100).verify[7] == pytest.approx(101)


def test_a_longer_context_is_never_taken_to_be_cheaper_than_what_was_measured() -> None:
    """A measurement that was disturbed must not make a round free far away."""
    costs = Costs(8, {100: AT_1100, 1100: AT_100})

    assert costs.at(100_000).verify == costs.at(1100).verify


def test_costs_follow_what_is_measured_later() -> None:
    costs = Costs(8, {100: AT_100})
    assert costs.at(1100).verify[0] == 10

    costs.add(1100, AT_1100)

    assert costs.at(1100).verify[0] == 20


def test_nothing_measured_is_no_cost() -> None:
    with pytest.raises(ValueError, match="measured"):
        Costs(8).at(0)


@pytest.mark.parametrize(
    ("known", "length", "covered"),
    [
        (16, 1023, True),
        (16, 1024, False),
        (2000, 4000, True),
        (2000, 5000, False),
        (9000, 10, False),
    ],
)
def test_a_measurement_stands_for_contexts_of_its_own_magnitude(
    known: int, length: int, covered: bool
) -> None:
    assert Costs(8, {known: AT_100}).covers(length) is covered


def test_the_rows_to_measure_end_with_the_whole_block() -> None:
    assert Costs(16).rows_to_measure() == [1, 2, 4, 8, 12, 16]
    assert Costs(10).rows_to_measure() == [1, 2, 4, 8, 10]
    assert Costs(2).rows_to_measure() == [1, 2]


def test_what_is_kept_is_found_again_and_can_be_read(tmp_path: Path) -> None:
    facts = {"chip": "M9", "model": "some"}
    file = costs_file(tmp_path / "new", facts)
    write_costs(file, Costs(8, {100: AT_100, 1100: AT_1100}), facts)

    assert read_costs(file, 8).measured == {100: AT_100, 1100: AT_1100}
    assert json.loads(file.read_text())["facts"] == facts
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_full_disk_is_left_with_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, text: str, encoding: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_costs(tmp_path / "costs.json", Costs(8, {100: AT_100}), {})

    assert list(tmp_path.iterdir()) == []


def test_each_machine_and_pair_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = {costs_file(tmp_path, {"chip": chip, "mlx": mlx}).name for chip in "ab" for mlx in "12"}

    assert len(names) == 4


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"measured": {"x": {}}}',
        '{"measured": {"5": {}}}',
        '{"measured": {"5": {"1": [2]}}}',
        '{"measured": {"5": {"4": [2, 1]}}}',
        '{"measured": {"5": {"1": [0, 0]}}}',
        '{"measured": {"5": {"1": [2, -1]}}}',
        '{"measured": {"5": {"1": [NaN, 0]}}}',
        '{"measured": {"5": {"1": [2, Infinity]}}}',
        f'{{"measured": {{"5": {{"1": [1{"0" * 400}, 0]}}}}}}',
    ],
)
def test_a_file_that_makes_no_sense_is_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "costs.json").write_text(content)

    assert read_costs(tmp_path / "costs.json", 8).measured == {}
