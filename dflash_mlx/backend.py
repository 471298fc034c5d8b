"""What this process computes with: checked, prepared and reported.

`prepare` runs before MLX is first imported, since that is when the linker decides which BLAS MLX
multiplies with. On Linux, MLX's wheel carries the reference BLAS: slow, but a call with k rows
gives the same bits as k calls with one row. OpenBLAS, loaded into the global scope beforehand,
takes its place: several times faster for blocks of rows, and no longer bit-equal across row counts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from .errors import DFlashError

OPENBLAS = "libopenblas.so.0"

SLOW_BLAS = "drafting is slower than --no-draft here; install libopenblas0-pthread"
TOO_LATE = (
    "drafting is slower than --no-draft here; MLX was imported before OpenBLAS could be loaded, "
    "so import dflash_mlx first"
)
NO_COMPILER = "mx.compile is off: it needs g++ (install g++)"
NO_FOLDER = "mx.compile is off: it cannot write to {folder} (set TMPDIR to a folder of yours)"


@dataclass(frozen=True)
class Backend:
    """What really runs in this process.

    `device` is "cpu" or "metal"; `blas` is "openblas", "reference" (MLX's own) or "accelerate";
    `compiled` tells whether `mx.compile` is on; `exact` promises the same bits for one row and for
    k rows. Each of `notes` is one line for a person to read.
    """

    device: str
    blas: str
    compiled: bool
    exact: bool
    notes: tuple[str, ...] = ()


@cache
def prepare(*, exact: bool = False) -> Backend:
    """Make this process ready for MLX and tell what it will run on; a second call changes nothing.

    Raises DFlashError where MLX cannot run, or where `exact` cannot be kept.
    """
    if problem := platform_problem(*this_platform()):
        raise DFlashError(problem)
    linux = platform.system() == "Linux"
    too_late = "mlx.core" in sys.modules
    found = linux and not exact and _load_openblas(only_look=too_late)
    mx = _import_mlx()
    device = _device(mx)
    blas = _blas_of_mlx(mx) if linux else "accelerate"
    if exact and (problem := exact_problem(device, blas)):
        raise DFlashError(problem)
    slow = device == "cpu" and blas == "reference" and not exact
    blas_note = (TOO_LATE if found else SLOW_BLAS) if slow else None
    compile_note = compile_problem(mx.__version__) if linux and device == "cpu" else None
    if compile_note:
        mx.disable_compile()
    compiled = compile_note is None and "MLX_DISABLE_COMPILE" not in os.environ
    notes = tuple(note for note in (blas_note, compile_note) if note)
    return Backend(device, blas, compiled, exact, notes)


def this_platform() -> tuple[str, str, bool]:
    """The arguments of `platform_problem`, read off this machine."""
    system, machine = platform.system(), platform.machine()
    return system, machine, system == "Darwin" and machine == "x86_64" and _is_translated()


def platform_problem(system: str, machine: str, translated: bool) -> str | None:
    """One sentence for a person whose platform MLX does not support; None where it does.

    `system` and `machine` are `platform.system()` and `platform.machine()`; `translated` tells
    whether Rosetta runs this process.
    """
    if system == "Windows":
        return "dflash-mlx does not run on Windows itself: install it inside WSL (`wsl --install`)."
    if system == "Darwin" and machine == "x86_64" and translated:
        return (
            "This Python is an x86-64 build under Rosetta, which MLX does not support: "
            "install an arm64 Python (python.org has one) and set dflash-mlx up with it."
        )
    if system == "Darwin" and machine != "arm64":
        return "Intel Macs are unsupported: MLX needs a Mac with Apple Silicon, or Linux."
    if system not in ("Darwin", "Linux"):
        return f"{system} is unsupported: MLX needs a Mac with Apple Silicon, or Linux."
    return None


def exact_problem(device: str, blas: str) -> str | None:
    """One sentence where bit-equal rows cannot be promised; None where they can."""
    if device == "metal":
        return None  # the model proves it when it is loaded
    if device != "cpu":
        return "--exact is not possible on this GPU: our kernels serve Metal; leave the flag out."
    if blas == "openblas":
        return (
            "--exact needs MLX's own BLAS, but this process has OpenBLAS loaded already: "
            "start a fresh process that asks for exact first."
        )
    if blas != "reference":
        return f"--exact is not possible with the BLAS in use here ({blas}): leave the flag out."
    return None


def compile_problem(mlx_version: str) -> str | None:
    """One note where MLX on Linux cannot compile its fused CPU kernels; None where it can.

    It does so at run time, with the PATH's `g++`, which it asks for its version first, as this
    does; into a folder that all users of a machine share and the first of them owns.
    """
    try:
        subprocess.run(["g++", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return NO_COMPILER
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    folder = temporary / "mlx" / mlx_version / "cpu"
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), temporary)
    usable = temporary.is_dir() and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if not usable:
        return NO_FOLDER.format(folder=folder)
    return None


def _is_translated() -> bool:
    """Whether Rosetta runs this process: an Intel Mac does not know the name and prints nothing."""
    command = ["/usr/sbin/sysctl", "-n", "sysctl.proc_translated"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() == "1"


def _load_openblas(*, only_look: bool) -> bool:
    """Load OpenBLAS so that libraries loaded later link against it; False if there is none."""
    try:
        ctypes.CDLL(OPENBLAS, mode=os.RTLD_LOCAL if only_look else os.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _import_mlx() -> ModuleType:
    try:
        import mlx.core as mx
    except ImportError as error:
        raise DFlashError(
            f"MLX cannot be imported ({error}): reinstall it with "
            "`python -m pip install --force-reinstall mlx`."
        ) from error
    return mx


def _device(mx: ModuleType) -> str:
    if mx.default_device() == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "gpu"


class _SymbolInfo(ctypes.Structure):
    """`Dl_info` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _blas_of_mlx(mx: ModuleType) -> str:
    """The BLAS that MLX's matrix products call on Linux, found where the linker finds it.

    That is the process's global scope first (OpenBLAS, if something loaded it there), then what
    libmlx.so was itself linked with.
    """
    libmlx = Path(mx.__file__ or "").parent / "lib" / "libmlx.so"
    for scope in (None, str(libmlx)):
        if scope is None or libmlx.exists():
            symbol = getattr(ctypes.CDLL(scope), "cblas_sgemm", None)
            if symbol is not None:
                return _name_of_blas(_file_of(symbol))
    return "unknown"


def _file_of(symbol: object) -> Path:
    """The library that a function of ctypes lives in."""
    info = _SymbolInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_SymbolInfo))
    dladdr(ctypes.cast(symbol, ctypes.c_void_p), ctypes.byref(info))  # type: ignore[arg-type]
    return Path(os.fsdecode(info.file or b"")).resolve()


def _name_of_blas(library: Path) -> str:
    """Debian's OpenBLAS also comes as `openblas-pthread/libblas.so.3`, so the folder counts."""
    if "openblas" in library.name or "openblas" in library.parent.name:
        return "openblas"
    return "reference" if library.name.startswith("libblas") else library.name
