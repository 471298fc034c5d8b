"""What doctor tells without MLX: each finding, and what to do about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dflash_mlx.doctor.finding import Finding
from dflash_mlx.doctor.installation import (
    cache_findings,
    disk_finding,
    import_finding,
    memory_finding,
    version_findings,
    wired_finding,
)
from dflash_mlx.hub.fit import GIB, Machine
from tests.tiny_folders import write_target

NEEDS = ["mlx>=0.32.4,<0.33", "mlx-lm>=0.32.2,<0.33", "transformers>=5", "rich>=14"]
GOOD = {"mlx": "0.32.4", "mlx-metal": "0.32.4", "mlx-lm": "0.32.2", "transformers": "5.24.0"}


def wrong(found: dict[str, str]) -> list[Finding]:
    return [f for f in version_findings(found, NEEDS) if f.status == "wrong"]


def test_versions_that_were_tested_are_told_and_fine() -> None:
    [finding] = version_findings(GOOD, NEEDS)
    assert (finding.status, finding.figures) == ("ok", GOOD)
    assert "mlx-metal 0.32.4" in finding.words


def test_mlx_and_its_metal_half_must_be_in_step() -> None:
    [finding] = wrong({**GOOD, "mlx-metal": "0.32.3"})
    assert finding.words == "mlx 0.32.4 with mlx-metal 0.32.3: out of step"
    assert finding.cure == (
        "`python -m pip install --force-reinstall mlx==0.32.4 mlx-metal==0.32.4`"
    )


def test_a_version_that_was_not_tested_and_one_that_is_missing_are_told() -> None:
    found = {name: version for name, version in GOOD.items() if name != "transformers"}
    words = [finding.words for finding in wrong({**found, "mlx-lm": "0.40.0"})]
    assert words == [
        "mlx-lm 0.40.0, but <0.33,>=0.32.2 is what was tested",
        "transformers is missing, but >=5 is what was tested",
    ]


def test_what_is_installed_here_is_what_was_tested() -> None:
    from dflash_mlx.machine import versions

    assert [f for f in version_findings(versions()) if f.status == "wrong"] == []


def test_an_mlx_that_computes_is_fine() -> None:
    assert import_finding().status == "ok"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ImportError('libmlx.so: cannot open')", "ImportError: libmlx.so: cannot open"),
        ("import os; os.abort()", "exit code -6"),
        ("ones = lambda n: 1", "AttributeError"),
    ],
)
def test_an_mlx_that_fails_or_crashes_is_found_out_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = import_finding(sys.executable)
    assert finding.status == "wrong"
    assert words in finding.words
    assert "pip install --force-reinstall" in finding.cure


def test_an_mlx_that_never_comes_back_is_found_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = import_finding(sys.executable, timeout=0.5)
    assert finding.status == "wrong"
    assert finding.words == "cannot be used: it says nothing for 0.5 seconds"
    assert finding.cure.startswith("restart the machine, then")


@pytest.mark.parametrize(
    ("gigabytes", "limit_mb", "status"),
    [
        (8, 0, "ok"),
        (8, 4096, "ok"),
        (8, 6000, "wrong"),
        (16, 12288, "ok"),
        (16, 14000, "wrong"),
        (32, 28672, "ok"),
        (64, 57344, "ok"),
        (64, 60000, "wrong"),
        (128, 114688, "ok"),
        (128, 131072, "wrong"),
    ],
)
def test_wired_memory_always_leaves_the_system_a_reserve(
    gigabytes: int, limit_mb: int, status: str
) -> None:
    finding = wired_finding(gigabytes * GIB, limit_mb)
    assert finding.status == status
    if status == "wrong":
        advised = int(finding.cure.split("=")[1].split("`")[0])
        assert wired_finding(gigabytes * GIB, advised).status == "ok"
        assert gigabytes * 1024 - advised >= max(4096, gigabytes * 128)


def test_little_memory_is_worth_knowing() -> None:
    assert memory_finding(Machine(4 * GIB, metal=False), "chip").status == "note"
    enough = memory_finding(Machine(16 * GIB, metal=True), "Apple M2, 16 GB")
    assert enough.words.startswith("Apple M2, 16 GB; models may take ")


def test_a_full_disk_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": GIB})
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage)
    finding = disk_finding(tmp_path / "not" / "there")
    assert (finding.status, finding.words) == ("wrong", f"1.0 GB are free at {tmp_path}")


def test_a_place_that_cannot_be_written_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write anywhere
    finding = disk_finding(tmp_path)
    assert finding.status == "wrong"
    assert "--cache-dir" in finding.cure


def test_models_are_counted_and_what_is_unfinished_is_told(tmp_path: Path) -> None:
    root, hub = tmp_path / "made", tmp_path / "hub"
    hub.mkdir()
    write_target(root / "whole")
    write_target(root / "half")
    (root / "half" / "model.safetensors").unlink()
    findings = list(cache_findings(root, hub))
    assert [(f.status, f.words) for f in findings[:2]] == [
        ("note", "half is unfinished"),
        ("note", "smollm2-135m is not set up"),
    ]
    assert findings[-1].words.startswith("3 models, ")


def test_a_finding_is_a_line_with_its_cure() -> None:
    assert Finding("disk", "wrong", "full", "free some").line == "wrong  disk: full -> free some"
    assert Finding("disk", "ok", "fine").line == "ok     disk: fine"
