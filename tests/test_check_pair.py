"""`scripts/check-pair`: the report that a Mac's owner pastes, on a tiny pair."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.tiny_folders import tiny_pair, write_tiny_pair

PROMPT = [257, 72, 105]


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module."""
    loader = SourceFileLoader("check_pair", str(ROOT / "scripts" / "check-pair"))
    spec = spec_from_loader("check_pair", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["check_pair"] = module  # its dataclasses look themselves up
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("margin", "noise", "verdict"),
    [(0.0, 0.0, "tie"), (0.1, 0.06, "tie"), (0.1, 0.04, "BUG"), (3.0, 0.1, "BUG")],
)
def test_a_difference_is_a_tie_where_rounding_of_both_logits_explains_it(
    script: Any, margin: float, noise: float, verdict: str
) -> None:
    difference = script.Difference(3, "a", "b", margin, margin, noise)
    assert difference.verdict == verdict
    assert str(difference).startswith(f"{verdict}: after 3 tokens 'a' became 'b'")


def test_a_wrong_token_is_a_bug_with_its_place_and_the_margin_of_the_logits(script: Any) -> None:
    pair = tiny_pair()
    plain, _ = script.run(pair, PROMPT, 8, 1)
    wrong = [*plain[:5], (plain[5] + 1) % 256, *plain[6:]]
    found = script.explain(pair, PROMPT, plain, wrong, rows=4)
    assert found.place == 5
    assert found.verdict == "BUG"
    logits = script.next_logits(pair, PROMPT + plain[:5], 1)
    assert found.margin == pytest.approx(abs(logits[plain[5]] - logits[wrong[5]]).item())
    assert 0 < found.second <= found.margin
    assert found.noise < 0.01


def test_a_reply_that_ends_too_early_is_a_bug(script: Any) -> None:
    pair = tiny_pair()
    plain, _ = script.run(pair, PROMPT, 8, 1)
    found = script.explain(pair, PROMPT, plain, plain[:6], rows=4)
    assert (found.place, found.drafted, found.verdict) == (6, "the end", "BUG")


def test_logits_after_a_block_are_those_after_single_rows_but_for_rounding(script: Any) -> None:
    pair = tiny_pair()
    alone = script.next_logits(pair, PROMPT, 1)
    for rows in (2, 3, 8):
        assert abs(script.next_logits(pair, PROMPT, rows) - alone).max().item() < 0.01


def checked(monkeypatch: pytest.MonkeyPatch, script: Any, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["check-pair", *arguments])
    return int(script.main())


def test_the_report_tells_what_ran_where_how_fast_and_whether_it_is_right(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = write_tiny_pair(tmp_path)
    models = ("--model", str(folders.target), "--draft-model", str(folders.drafter))
    assert checked(monkeypatch, script, *models, "--prompts", "2", "--tokens", "6") == 0
    report, progress = capsys.readouterr()
    assert report.startswith("## target + drafter\n")
    for words in ("- Machine: ", "- Versions: dflash-mlx ", "- Ran: target float32", "block 8"):
        assert words in report
    assert "- Identity: 2 of 2 replies the same, 0 part at a tie, 0 at a bug" in report
    assert "- Speed: " in report
    assert "- Acceptance length: " in report
    assert "| What is gravity? | 6 | " in report
    assert progress.startswith("1 of 2: | What is gravity? |")


def test_a_bug_is_exit_code_1_and_below_the_table(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = script.run

    def wrong(pair: Any, tokens: list[int], limit: int, rows: int) -> Any:
        said, stats = right(pair, tokens, limit, rows)
        return (said if rows == 1 else [(said[0] + 1) % 256, *said[1:]]), stats

    monkeypatch.setattr(script, "run", wrong)
    folders = write_tiny_pair(tmp_path)
    models = ("--model", str(folders.target), "--draft-model", str(folders.drafter))
    assert checked(monkeypatch, script, *models, "--prompts", "1", "--tokens", "4") == 1
    report = capsys.readouterr().out
    assert "0 of 1 replies the same, 0 part at a tie, 1 at a bug" in report
    assert report.splitlines()[-1].startswith("What is gravity? BUG: after 0 tokens")


def test_a_model_without_a_drafter_is_an_error(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = write_tiny_pair(tmp_path)
    assert checked(monkeypatch, script, "--model", str(folders.target)) == 1
    assert "no drafter is known for target" in capsys.readouterr().err
