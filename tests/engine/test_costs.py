"""What rounds cost: lines between what was measured, and the file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_mlx.engine.costs import Costs, Timings, costs_file, read_costs, write_costs

AT_100 = Timings({1: 10.0, 4: 13.0, 8: 21.0}, {2: 1.8, 4: 2.0, 6: 2.4})
AT_1100 = Timings({1: 20.0, 4: 33.0, 8: 61.0}, {2: 2.8, 4: 3.0, 6: 3.4})


def test_rows_between_those_measured_lie_on_a_line() -> None:
    costs = Costs(8, 6, {100: AT_100}).at(100)

    assert costs.verify == [10, 11, 12, 13, 15, 17, 19, 21]
    assert costs.draft == pytest.approx([0, 1.8, 1.9, 2, 2.2, 2.4])


def test_so_do_lengths_and_beyond_the_last_the_line_goes_on() -> None:
    costs = Costs(8, 6, {1100: AT_1100, 100: AT_100})

    assert costs.at(50).verify[0] == 10
    assert costs.at(600).verify[7] == pytest.approx(41)
    assert costs.at(2100).verify[7] == pytest.approx(101)


def test_a_longer_context_is_never_taken_to_be_cheaper_than_what_was_measured() -> None:
    """A measurement that was disturbed must not make a round free far away."""
    costs = Costs(8, 6, {100: AT_1100, 1100: AT_100})

    assert costs.at(100_000).verify == costs.at(1100).verify


def test_costs_follow_what_is_measured_later() -> None:
    costs = Costs(8, 6, {100: AT_100})
    assert costs.at(1100).verify[0] == 10

    costs.add(1100, AT_1100)

    assert costs.at(1100).verify[0] == 20


def test_nothing_measured_is_no_cost() -> None:
    with pytest.raises(ValueError, match="measured"):
        Costs(8, 6).at(0)


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
    assert Costs(8, 6, {known: AT_100}).covers(length) is covered


@pytest.mark.parametrize(
    ("rows", "drafted", "verifications", "drafts"),
    [
        (16, 16, [1, 2, 4, 8, 12, 16], [2, 4, 8, 12, 16]),
        (16, 6, [1, 2, 4, 6, 8, 12, 16], [2, 4, 6]),
        (16, 2, [1, 2, 4, 8, 12, 16], [2]),
        (16, 1, [1, 2, 4, 8, 12, 16], []),
        (10, 10, [1, 2, 4, 8, 10], [2, 4, 8, 10]),
    ],
)
def test_the_rows_to_measure_end_with_the_whole_blocks(
    rows: int, drafted: int, verifications: list[int], drafts: list[int]
) -> None:
    assert Costs(rows, drafted).rows_to_measure() == (verifications, drafts)


def test_a_draft_whose_rows_were_not_all_measured_is_not_taken_to_be_cheaper() -> None:
    """A slow machine is measured at the ends alone, and a block of one row has no draft at all."""
    ends = Timings({1: 10.0, 16: 20.0}, {6: 3.0})

    assert Costs(16, 6, {100: ends}).at(100).draft == [0, 3, 3, 3, 3, 3]
    assert Costs(16, 1, {100: Timings(ends.verify, {})}).at(100).draft == [0]


def test_what_is_kept_is_found_again_and_can_be_read(tmp_path: Path) -> None:
    facts = {"chip": "M9", "model": "some"}
    file = costs_file(tmp_path / "new", facts)
    write_costs(file, Costs(8, 6, {100: AT_100, 1100: AT_1100}), facts)

    assert read_costs(file, 8, 6).measured == {100: AT_100, 1100: AT_1100}
    assert json.loads(file.read_text())["facts"] == facts
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_left_with_no_part_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        write_costs(tmp_path / "costs.json", Costs(8, 6, {100: AT_100}), {})

    assert list(tmp_path.iterdir()) == []


def test_each_machine_and_pair_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = {costs_file(tmp_path, {"chip": chip, "mlx": mlx}).name for chip in "ab" for mlx in "12"}

    assert len(names) == 4


GOOD = '{"verify": {"1": 2, "8": 3}, "draft": {"6": 1}}'


def kept(tmp_path: Path, content: str) -> Path:
    file = tmp_path / "costs.json"
    file.write_text(content)
    return file


@pytest.mark.parametrize(
    "content",
    [
        *["", "{", "[]", "{}", "NaN"],
        '{"measured": {"x": GOOD}}',
        '{"measured": {"5": {}}}',
        '{"measured": {"5": {"verify": [2], "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": [2], "8": 3}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": null, "8": 3}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": 0, "8": 3}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": 2, "8": 3}, "draft": {"6": -1}}}}',
        '{"measured": {"5": {"verify": {"1": NaN, "8": 3}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": 2, "8": Infinity}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": 1e999, "8": 3}, "draft": {"6": 1}}}}',
    ],
)
def test_a_file_that_makes_no_sense_is_as_none(tmp_path: Path, content: str) -> None:
    assert read_costs(kept(tmp_path, f'{{"measured": {{"5": {GOOD}}}}}'), 8, 6).measured
    assert read_costs(kept(tmp_path, content.replace("GOOD", GOOD)), 8, 6).measured == {}


@pytest.mark.parametrize(
    "content",
    [
        '{"measured": {"5": {"1": [2, 0], "8": [3, 1]}}}',
        '{"measured": {"5": {"verify": {"1": 2, "6": 3}, "draft": {"6": 1}}}}',
        '{"measured": {"5": {"verify": {"1": 2, "8": 3}, "draft": {"4": 1}}}}',
        '{"measured": {"5": {"verify": {"8": 3}, "draft": {"6": 1}}}}',
    ],
    ids=["as version 0.1 wrote", "up to fewer rows", "up to fewer drafts", "without a plain step"],
)
def test_a_file_of_another_version_is_measured_anew_and_not_misread(
    tmp_path: Path, content: str
) -> None:
    assert read_costs(kept(tmp_path, content), 8, 6).measured == {}
