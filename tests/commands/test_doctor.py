"""`dflash-mlx doctor`: what it prints, and its exit code, with MLX and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx import cli
from dflash_mlx.backend import Backend
from dflash_mlx.commands import doctor as command
from dflash_mlx.doctor import installation, numerics
from dflash_mlx.doctor.finding import Finding
from tests.conftest import ROOT, RunCli
from tests.tiny_folders import write_tiny_pair


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy shapes, and only the models that a test makes."""
    real = numerics.numeric_findings
    monkeypatch.setattr(numerics, "numeric_findings", lambda device: real(device, small=True))
    monkeypatch.setattr(installation, "held_models", lambda root, hub: [])


def doctor(folder: Path, *flags: str) -> int:
    pair = write_tiny_pair(folder)
    models = ("--model", str(pair.target), "--draft-model", str(pair.drafter))
    return cli.run(["doctor", *models, "--cache-dir", str(folder), *flags])


def test_a_sound_machine_is_told_line_by_line_and_is_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Nothing is wrong."
    checks = [line[7:].split(":")[0] for line in lines[:-2]]
    assert list(dict.fromkeys(checks)) == [
        *["platform", "versions", "memory", "disk", "caches", "mlx", "backend"],
        *["op parity", "precision", "row-invariance", "identity", "cost of rounds"],
    ]


def test_json_has_every_finding_with_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(tmp_path, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"]
    assert report["versions"]["mlx"]
    by_check = {finding["check"]: finding for finding in report["findings"]}
    assert by_check["cost of rounds"]["figures"]["plain_seconds"] > 0
    assert by_check["op parity"]["status"] == "ok"


def test_json_knows_no_infinity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worst = numerics.parity_finding({"matmul": float("inf")})
    monkeypatch.setattr(command, "examine", lambda arguments: iter([worst]))
    assert doctor(tmp_path, "--json") == 1
    printed = capsys.readouterr().out
    assert "Infinity" not in printed
    assert json.loads(printed)["findings"][0]["figures"] == {"matmul": None}


def test_one_wrong_thing_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(root: Path) -> Finding:
        return Finding("disk", "wrong", "full", "free some")

    monkeypatch.setattr(installation, "disk_finding", full)
    assert doctor(tmp_path) == 1
    told = capsys.readouterr().out
    assert "wrong  disk: full -> free some" in told
    assert told.endswith("\n1 is wrong.\n")


def test_a_pair_that_does_not_load_is_wrong_and_the_rest_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tmp_path / "absent"), "--cache-dir", str(tmp_path)]
    assert cli.run(["doctor", *flags]) == 1
    told = capsys.readouterr().out
    assert "ok     op parity" in told
    assert "wrong  identity: " in told


def test_without_the_embedded_pair_nothing_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["doctor", "--cache-dir", str(tmp_path)]) == 0
    assert "`dflash-mlx models pull smollm2-135m`, then run this again" in capsys.readouterr().out


def test_it_works_where_mlx_itself_fails_to_import(run_cli: RunCli, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "mlx"
    broken.mkdir(parents=True)
    (broken / "__init__.py").touch()
    (broken / "core.py").write_text("raise ImportError('libmlx.dylib is not there')")
    paths = f"{broken.parent}:{ROOT}"
    done = run_cli("doctor", "--json", home=True, env={"PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (1, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert not report["healthy"]
    wrong = [finding for finding in report["findings"] if finding["status"] == "wrong"]
    assert [finding["check"] for finding in wrong] == ["mlx"]
    assert "ImportError: libmlx.dylib is not there" in wrong[0]["words"]
    assert "pip install --force-reinstall" in wrong[0]["cure"]


def test_what_slows_the_backend_down_is_noted() -> None:
    findings: Iterator[Finding] = command.backend_findings(
        Backend("cpu", "reference", False, False, ("mx.compile is off",))
    )
    assert [(f.status, f.words) for f in findings] == [
        ("ok", "cpu, reference BLAS, not compiled"),
        ("note", "mx.compile is off"),
    ]
