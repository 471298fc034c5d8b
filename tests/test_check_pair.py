"""`scripts/check-pair`: the report that a Mac's owner pastes, on a tiny pair."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.tiny_folders import write_tiny_pair


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
