"""What the process computes with is prepared before MLX and reported as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx import backend
from dflash_mlx.backend import compile_problem, exact_problem, platform_problem

ROOT = Path(__file__).resolve().parent.parent

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a choice of BLAS")

# Stands in for OpenBLAS: whoever multiplies with it gets 42 everywhere.
FORTY_TWO = """
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) c[row * ldc + column] = 42;
}
"""

# Prints the backend and a product of ones, [8, 8] @ [8, 8]: 8 everywhere.
REPORT = """
import dataclasses, json
backend = prepare(exact=EXACT)
import mlx.core as mx
product = mx.ones((8, 8)) @ mx.ones((8, 8))
compiled = mx.compile(lambda x: mx.exp(x) * x)(product)
print(json.dumps({**dataclasses.asdict(backend), "product": product[7, 7].item()}))
"""


def report(
    openblas: Path | str, *, exact: bool = False, first: str = "", **env: str
) -> dict[str, object]:
    """`prepare` in a process of its own, with `openblas` as the library it looks for."""
    program = (
        f"from dflash_mlx import backend\nfrom dflash_mlx.backend import prepare\n"
        f"backend.OPENBLAS = {str(openblas)!r}\nEXACT = {exact}\n{first}\n{REPORT}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def openblas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("blas") / "libopenblas.so.0"
    compiler = ["g++", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=FORTY_TWO, text=True, check=True)
    return library


@pytest.mark.parametrize(
    ("system", "machine", "translated", "advice"),
    [
        ("Windows", "AMD64", False, "WSL"),
        ("Darwin", "x86_64", False, "Intel Macs are unsupported"),
        ("Darwin", "x86_64", True, "install an arm64 Python"),
        ("FreeBSD", "amd64", False, "FreeBSD is unsupported"),
    ],
)
def test_a_platform_without_mlx_is_told_what_to_do_in_one_sentence(
    system: str, machine: str, translated: bool, advice: str
) -> None:
    sentence = platform_problem(system, machine, translated)
    assert sentence
    assert advice in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64")]
)
def test_a_platform_with_mlx_is_welcome(system: str, machine: str) -> None:
    assert platform_problem(system, machine, translated=False) is None


def test_the_platform_is_refused_before_mlx_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "this_platform", lambda: ("Windows", "AMD64", False))
    monkeypatch.setattr(backend, "_import_mlx", lambda: pytest.fail("MLX was imported"))
    with pytest.raises(backend.DFlashError, match="WSL"):
        backend.prepare.__wrapped__()


def test_an_mlx_that_fails_to_import_is_said_to_be_reinstalled() -> None:
    program = (
        "import sys; sys.modules['mlx'] = None\n"
        "from dflash_mlx.backend import DFlashError, prepare\n"
        "try: prepare()\n"
        "except DFlashError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "MLX cannot be imported" in done.stdout
    assert "reinstall it" in done.stdout


@on_linux
def test_openblas_is_loaded_before_mlx_and_named_and_multiplies(openblas: Path) -> None:
    found = report(openblas)
    assert (found["blas"], found["product"], found["notes"]) == ("openblas", 42, [])


@on_linux
def test_without_openblas_a_note_says_that_drafting_is_slower_and_what_to_install() -> None:
    found = report("libabsent.so.0")
    assert (found["blas"], found["product"]) == ("reference", 8)
    assert found["notes"] == [
        "drafting is slower than --no-draft here; install libopenblas0-pthread"
    ]


@on_linux
def test_exact_keeps_the_blas_of_mlx_and_needs_no_note(openblas: Path) -> None:
    found = report(openblas, exact=True)
    assert (found["blas"], found["product"], found["exact"]) == ("reference", 8, True)
    assert found["notes"] == []


@on_linux
def test_mlx_imported_too_early_is_reported_with_the_blas_it_really_has(openblas: Path) -> None:
    found = report(openblas, first="import mlx.core")
    assert (found["blas"], found["product"]) == ("reference", 8)
    assert "MLX was imported before OpenBLAS" in str(found["notes"])


@on_linux
def test_exact_after_openblas_asks_for_a_fresh_process(openblas: Path) -> None:
    caught = "prepare()\ntry: prepare(exact=True)\nexcept Exception as error: caught = str(error)\n"
    found = report(openblas, first=f"{caught}\nassert 'fresh process' in caught")
    assert found["blas"] == "openblas"


@pytest.mark.parametrize(
    ("device", "blas", "reason"),
    [
        ("gpu", "reference", "our kernels serve Metal"),
        ("cpu", "openblas", "fresh process"),
        ("cpu", "accelerate", "accelerate"),
    ],
)
def test_exact_is_refused_by_name_where_it_cannot_be_kept(
    device: str, blas: str, reason: str
) -> None:
    sentence = exact_problem(device, blas)
    assert sentence
    assert reason in sentence


def test_exact_is_kept_by_the_blas_of_mlx_and_proven_by_each_model_on_metal() -> None:
    assert exact_problem("cpu", "reference") is None
    assert exact_problem("metal", "accelerate") is None


@on_linux
def test_without_gpp_compilation_is_off_and_said_so(tmp_path: Path) -> None:
    found = report("libabsent.so.0", exact=True, PATH=str(tmp_path))
    assert found["compiled"] is False
    assert found["notes"] == ["mx.compile is off: it needs g++ (install g++)"]


@on_linux
def test_where_kernels_cannot_be_written_compilation_is_off_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = report("libabsent.so.0", exact=True, TMPDIR=str(tmp_path / "file"))
    assert found["compiled"] is False
    assert "cannot write" in str(found["notes"])


@on_linux
def test_a_working_compiler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert compile_problem("0") is None
