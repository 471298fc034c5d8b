"""clang: find it, compile with it, keep what it made, and turn addresses into lines.

A kernel becomes a shared object in two steps. clang compiles C++ to LLVM's text with its address
checks outlined to our hooks; the text gets a counter for each basic block (`operations.py`); clang
compiles that to machine code. Results are kept in a folder by the hash of everything that went in.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .faults import CompileError, ToolchainMissing

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
DEFAULT_CACHE = Path.home() / ".cache" / "dflash-mlx" / "simulator"

MISSING = (
    "The Metal simulator needs clang 19 or newer: run `apt-get install clang-19` "
    "(Debian, Ubuntu) or `brew install llvm@19` (macOS)."
)

_CANDIDATES = (
    "clang++-19",
    "/opt/homebrew/opt/llvm@19/bin/clang++",
    "/usr/local/opt/llvm@19/bin/clang++",
    "clang++-20",
    "clang++-21",
    "clang++",
)

_LANGUAGE = """
    -std=c++17 -fPIC -g1 -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -fno-optimize-sibling-calls
    -Wno-unknown-attributes -Wno-ignored-attributes -Wno-unknown-pragmas -Wno-unused-value
    -Wno-c++11-narrowing -Wno-missing-declarations -Wno-varargs
    -Xclang -ffloat16-excess-precision=none -Xclang -fbfloat16-excess-precision=none
"""  # half and bfloat round at each operation, as on the GPU

# Nothing merges what the kernel asked for; a check of a thread's own arrays and of divisors; a call
# before every other load and store, whatever clang can prove about it, and no shadow memory.
_CHECKS = """
    -O1 -fno-vectorize -fno-slp-vectorize -mllvm -disable-vector-combine
    -mllvm -inline-threshold=10000
    -fsanitize=array-bounds,integer-divide-by-zero -fsanitize-minimal-runtime
    -Xclang -fsanitize=kernel-address -mllvm -asan-instrumentation-with-call-threshold=0
    -mllvm -asan-stack=0 -mllvm -asan-globals=0 -mllvm -asan-opt-globals=0
    -mllvm -asan-opt-same-temp=0 -mllvm -asan-kernel-mem-intrinsic-prefix=1
"""


def _target() -> list[str]:
    """An instruction set with fused multiply-add and half conversions: fma is one rounding."""
    return ["-march=x86-64-v3"] if platform.machine() in ("x86_64", "AMD64") else []


def _link() -> list[str]:
    if platform.system() == "Darwin":
        return ["-dynamiclib", "-undefined", "dynamic_lookup"]
    return ["-shared", "-Wl,--hash-style=gnu"]


@dataclass(frozen=True)
class Toolchain:
    """A clang and the folder of what it compiled."""

    clang: str
    cache: Path

    @staticmethod
    def find(cache: Path | None = None) -> Toolchain:
        """The first clang that is new enough; ToolchainMissing says how to install one."""
        for candidate in _CANDIDATES:
            path = shutil.which(candidate)
            if path and _major_version(path) >= 19:
                return Toolchain(path, cache or DEFAULT_CACHE)
        raise ToolchainMissing(MISSING)

    def _cached(self, identity: bytes, key: str, make: Callable[[Path], None]) -> Path:
        digest = hashlib.sha256(identity + key.encode()).hexdigest()[:24]
        target = self.cache / f"{digest}.so"
        if not target.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.cache) as folder:
                made = Path(folder) / target.name
                make(made)
                made.replace(target)
        return target

    def once(self, key: str, check: Callable[[], None]) -> None:
        """Run a check that raises, unless it passed before with the same key."""

        def make(target: Path) -> None:
            check()
            target.touch()

        self._cached(_identity(self.clang, INCLUDE), key, make)

    @cached_property
    def runtime(self) -> Path:
        """The shared object that runs kernels."""

        def make(target: Path) -> None:
            sources = [str(p) for p in sorted((HERE / "runtime").glob("*.cpp"))]
            flags = [*_LANGUAGE.split(), *_target(), "-O2", f"-I{INCLUDE}"]
            _run([self.clang, *flags, *_link(), *sources, "-lm", "-o", str(target)])

        return self._cached(_identity(self.clang, INCLUDE, HERE / "runtime"), "runtime", make)

    def kernel(
        self,
        source: str,
        *,
        contract: bool,
        include: Path | None,
        instrument: Callable[[str], str],
    ) -> Path:
        """Compile C++ text to a shared object; `instrument` rewrites LLVM's text on the way."""
        flags = [
            *_LANGUAGE.split(),
            *_target(),
            f"-ffp-contract={'fast-honor-pragmas' if contract else 'off'}",
            f"-I{INCLUDE}",
            *([f"-I{include}"] if include else []),
        ]

        def make(target: Path) -> None:
            text, code, part = (target.with_suffix(s) for s in (".cpp", ".ll", ".o"))
            text.write_text(source)
            front = [*flags, *_CHECKS.split(), "-S", "-emit-llvm"]
            _run([self.clang, *front, str(text), "-o", str(code)])
            code.write_text(instrument(code.read_text()))
            back = ["-O1", "-fPIC", "-Xclang", "-disable-llvm-passes", *_target()]
            _run([self.clang, *back, "-Wno-override-module", "-c", str(code), "-o", str(part)])
            _run([self.clang, *_link(), str(part), "-o", str(target)])
            if platform.system() == "Darwin":  # line tables stay behind in the object file
                lines = self.cache / f"{target.stem}.lines"
                _run([str(self._beside("dsymutil")), "--flat", str(target), "-o", str(lines)])

        return self._cached(_identity(self.clang, INCLUDE), f"{flags}{source}", make)

    def check_syntax(self, source: str, flags: list[str]) -> str:
        """clang's complaints about C++ text, compiled to nothing."""
        command = [self.clang, *_LANGUAGE.split(), *_target(), f"-I{INCLUDE}", *flags]
        result = subprocess.run(
            [*command, "-fsyntax-only", "-x", "c++", "-"],
            input=source,
            capture_output=True,
            text=True,
        )
        return result.stderr

    def _beside(self, tool: str) -> Path:
        """A tool of clang's own installation."""
        return Path(self.clang).resolve().parent / tool

    def locate(self, image: Path, offset: int) -> list[tuple[str, int]]:
        """(file, line) of the code at an offset into a shared object, the innermost call first."""
        lines = image.with_suffix(".lines")
        image = lines if lines.exists() else image
        if (symbolizer := self._beside("llvm-symbolizer")).exists():
            command = [str(symbolizer), "--functions=none", "--obj", str(image), hex(offset)]
        else:
            command = ["addr2line", "-i", "-e", str(image), hex(offset)]
        found = re.findall(r"^(.+?):(\d+)", _run(command), re.MULTILINE)
        return [(Path(name).name, int(line)) for name, line in found]


@cache
def _version(clang: str) -> str:
    return _run([clang, "--version"])


def _major_version(clang: str) -> int:
    found = re.search(r"clang version (\d+)", _version(clang))
    return int(found.group(1)) if found else 0


@cache
def _identity(clang: str, *folders: Path) -> bytes:
    """Whatever changes the meaning of a cached object, apart from its own source."""
    digest = hashlib.sha256(_version(clang).encode())
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    digest.update((HERE / "operations.py").read_bytes() + Path(__file__).read_bytes())
    return digest.digest()


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise CompileError(result.stderr.strip() or f"{command[0]} failed without a word")
    return result.stdout
