"""What an installation holds, and what the two scripts promise."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from dflash_mlx.kernels.metal import source_folder

from .conftest import ROOT


def tracked(*folders: str) -> list[str]:
    """The repository's files in `folders`, new ones included, as paths from its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_every_module_and_asset(wheel: zipfile.ZipFile) -> None:
    assert set(tracked("dflash_mlx")) <= set(wheel.namelist())
    assert "dflash_mlx/cli.py" in wheel.namelist()


def test_the_wheel_holds_the_metal_sources_inside_the_package(wheel: zipfile.ZipFile) -> None:
    sources = tracked("metal")
    assert sources
    assert {f"dflash_mlx/{name}" for name in sources} <= set(wheel.namelist())


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {*tracked("dflash_mlx"), *(f"dflash_mlx/{name}" for name in tracked("metal"))}
    others = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert others <= ours
    assert any(name.endswith("licenses/NOTICE") for name in wheel.namelist())


def test_an_installed_wheel_finds_its_own_metal_sources(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)
    program = "from dflash_mlx.kernels.metal import source_folder; print(source_folder())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / "dflash_mlx" / "metal"


def test_a_checkout_finds_the_metal_sources_at_its_top() -> None:
    assert source_folder() == ROOT / "metal"


def test_an_editable_install_points_at_the_checkout_and_copies_nothing(tmp_path: Path) -> None:
    program = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
    built = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    [pointer] = [name for name in built.namelist() if ".dist-info/" not in name]
    assert built.read(pointer).decode().strip() == str(ROOT)


def test_what_is_pinned_is_what_the_tests_run_against() -> None:
    from importlib.metadata import version

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    here = [Requirement(text) for text in project["dependencies"]]
    pinned = {
        need.name: need.specifier for need in here if not need.marker or need.marker.evaluate()
    }
    assert {"mlx", "mlx-lm", "transformers"} <= pinned.keys()
    assert [name for name, range_ in pinned.items() if version(name) not in range_] == []


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", ".ci/run"])
def test_the_scripts_can_be_run_and_parse(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def start_demo(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """`scripts/demo` of a bare checkout in `folder`, in an environment that has only a PATH."""
    (folder / "scripts").mkdir()
    for name in ("scripts/demo", "scripts/environment.sh", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return subprocess.run(
        [shutil.which("bash") or "bash", str(folder / "scripts/demo")],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_needs_a_python_that_is_new_enough(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "cat"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    done = start_demo(tmp_path, str(programs))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: No Python 3.11 or newer was found")


def test_demo_says_that_a_platform_is_unsupported_before_it_installs(tmp_path: Path) -> None:
    (tmp_path / "dflash_mlx").mkdir()
    (tmp_path / "dflash_mlx/__init__.py").touch()  # else the one that is installed is imported
    (tmp_path / "dflash_mlx/backend.py").write_text(
        "def this_platform(): return ['Windows']\n"
        "def platform_problem(system): return f'Not on {system}.'\n"
    )
    done = start_demo(tmp_path, f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: Not on Windows.\n")
    assert not (tmp_path / ".venv").exists()
