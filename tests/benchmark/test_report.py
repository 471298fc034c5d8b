"""The figures of arms whose answers are known, and how they read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dflash_mlx.benchmark import plot
from dflash_mlx.benchmark.report import to_json
from dflash_mlx.benchmark.runner import Bench, Measured, Record
from dflash_mlx.benchmark.strata import Stratum
from dflash_mlx.benchmark.table import against_lines, differences, table, warm_up_line
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError

from .fakes import ANSWER, FakeArm, faster

PROMPTS = ["one", "two", "three"]


def figures(*arms: FakeArm, sampling: Sampling | None = None, **measured: Any) -> dict[str, Any]:
    strata = [Stratum("chat", PROMPTS, sampling or Sampling())]
    bench = Bench([FakeArm("plain"), *arms], strata, lambda text: [1], 20)
    result = Measured(**measured)
    bench.measure(result)
    return to_json(bench, result, lambda plain, other: {"words": f"on {plain.prompt}"})


def arm(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = report["strata"]["chat"]["arms"][name]
    return found


def test_an_arm_that_is_twice_as_fast_has_a_speedup_of_two() -> None:
    found = arm(figures(FakeArm("auto", faster(2))), "auto")
    assert found["speedup"] == 2.0
    assert found["speedup_interval"] == [2.0, 2.0]
    assert found["tokens_per_second"] == 4.0
    assert found["speedup_with_prefill"] == pytest.approx((5 / 1.5) / (5 / 2.5))
    assert (found["prefill_seconds"], found["decode_seconds"]) == (0.5, 1.0)
    assert found["time"] == {"prefill": 1.5, "decode": 3.0, "models": None, "outside": None}


def test_what_of_the_time_went_into_the_models_is_told_where_an_arm_knows() -> None:
    timed = replace(ANSWER, model_seconds=1.75)
    found = arm(figures(FakeArm("auto", timed)), "auto")
    assert found["time"] == {"prefill": 1.5, "decode": 6.0, "models": 5.25, "outside": 0.75}


def test_acceptance_is_pooled_over_all_rounds() -> None:
    found = arm(figures(FakeArm("auto", faster(2))), "auto")
    assert found["acceptance_length"] == 2.0
    assert found["per_position"] == [pytest.approx(2 / 3), pytest.approx(1 / 3), 0.0]
    assert found["rounds"] == 9


def test_plain_decoding_is_the_measure_of_itself() -> None:
    found = arm(figures(), "plain")
    assert (found["speedup"], found["acceptance_length"], found["per_position"]) == (1.0, None, [])


def test_answers_that_differ_are_counted_and_the_first_is_explained() -> None:
    def other(asked: Any, sample: Any) -> Any:
        return sample if asked.text == "one" else replace(sample, tokens=[1, 2, 9, 9, 9])

    found = arm(figures(FakeArm("auto", changes=other)), "auto")["identity"]
    assert found == {"same": 1, "compared": 3, "first_difference": {"words": "on two"}}


def test_an_arm_with_draws_of_its_own_is_compared_only_when_greedy() -> None:
    peer = FakeArm("peer", same_rule=False)
    assert arm(figures(peer, sampling=Sampling(temperature=1.0)), "peer")["identity"] is None
    assert arm(figures(peer), "peer")["identity"]["same"] == 3


def test_our_arms_are_set_against_every_other_program() -> None:
    report = figures(FakeArm("auto", faster(3)), FakeArm("peer", faster(2), same_rule=False))
    assert report["strata"]["chat"]["against"] == {
        "peer": {"plain": [0.5, 0.5, 0.5], "auto": [1.5, 1.5, 1.5]}
    }
    assert against_lines(report["strata"]) == [
        "chat, times peer: plain 0.50 (0.50-0.50), auto 1.50 (1.50-1.50)"
    ]
    assert against_lines(figures(FakeArm("auto"))["strata"]) == []


def test_loops_are_told_apart_since_they_flatter() -> None:
    def loops(asked: Any, sample: Any) -> Any:
        if asked.text == "one":
            return sample
        return replace(sample, tokens=[7] * 40, decode_seconds=0.1)

    found = arm(figures(FakeArm("auto", changes=loops)), "auto")
    assert found["looped_answers"] == 2
    assert found["speedup"] == pytest.approx(20.0)
    assert found["speedup_without_loops"] == 1.0


def test_drift_over_five_percent_is_told() -> None:
    report = figures(plain_speeds=[2.2])
    assert report["drift"]["too_much"]
    assert report["notes"] == [
        "plain changed its speed by 9% while this ran: let the machine cool, close what else runs,"
        " and measure again"
    ]
    assert figures()["drift"] == {"tokens_per_second": [2.0, 2.0], "share": 0, "too_much": False}


def test_an_arm_that_never_drafted_does_not_pass_for_drafting() -> None:
    assert figures(FakeArm("auto"))["notes"] == [
        "auto never drafted: its figures are those of plain decoding"
    ]
    assert figures(FakeArm("auto", faster(2)))["notes"] == []


def test_an_arm_that_failed_is_told_beside_what_it_and_the_others_gave() -> None:
    report = figures(FakeArm("bad", faster(2), fails_at=2), FakeArm("auto", faster(3)))
    assert report["failed"] == {"bad": "it broke."}
    assert report["notes"] == ["bad failed, and was left out: it broke."]
    assert (arm(report, "bad")["answers"], arm(report, "auto")["answers"]) == (1, 3)
    assert arm(report, "auto")["speedup"] == 3.0


def test_a_stratum_that_was_never_reached_is_left_out() -> None:
    strata = [Stratum(name, PROMPTS, Sampling()) for name in ("chat", "code")]
    bench = Bench([FakeArm("plain")], strata, lambda text: [1], 20)
    stopped = Measured(records=[Record("chat", "one", 0, "plain", 0, ANSWER)])
    assert list(to_json(bench, stopped)["strata"]) == ["chat"]


def test_the_table_has_a_row_an_arm_and_the_report_is_json() -> None:
    report = figures(FakeArm("auto", faster(2)))
    json.dumps(report, allow_nan=False)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table("chat", report["strata"]["chat"], "plain"))
    text = capture.get()
    assert "chat (greedy, 3 prompts)" in text
    row = next(line for line in text.splitlines() if "auto" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *["auto", "4.00", "2.00 (2.00-2.00)", "1.67 (1.67-1.67)", "0.50 s"],
        *["2.00", "3 of 3", "0 of 3"],
    ]
    assert warm_up_line(report["warm_up"]) == (
        "Warm-up, tokens/s, not counted: plain 2.00, auto 4.00"
    )
    assert differences(report["strata"]) == []


def test_the_plot_is_a_png_and_without_matplotlib_the_sentence_is_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bench.picture"  # whatever its name says
    plot.check_plot(file)
    plot.write_plot(file, figures(FakeArm("auto", faster(2)), FakeArm("mlx-lm")))
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(DFlashError, match=r"no folder .*absent"):
        plot.check_plot(tmp_path / "absent" / "bench.png")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(DFlashError, match=r"needs matplotlib: `python -m pip install"):
        plot.check_plot(file)
