"""What Metal would refuse and C++ would not: pointers into the wrong memory, floats into bfloat.

A second look at our own kernels, compiled to nothing, with clang's address spaces for `device`,
`constant` and `threadgroup`. The simulator's other build has one memory for all, and there a helper
that takes ``const device float*`` would accept a small input, which MLX passes in `constant`.
Structures in device memory are beyond this check (clang has no copy constructor for them): kernels
keep scalars and vectors there.
"""

from __future__ import annotations

import re

from .faults import CompileError
from .kernel import Source
from .toolchain import Toolchain

_FLAGS = ["-DSIMULATOR_ADDRESS_SPACES", "-Wimplicit-float-conversion", "-Wno-unused"]
_ERROR = re.compile(r"^\S+:\d+:\d+: (?:fatal )?error: ", re.MULTILINE)
_INTO_BFLOAT = re.compile(
    r"^(\S+:\d+:\d+): warning: implicit conversion loses floating-point precision: "
    r"'([^']+)'(?: \(aka '[^']+'\))? to (?:'bfloat'|'[^']+' \(aka '__bf16'\)|'__bf16')",
    re.MULTILINE,
)


def check_address_spaces(source: Source, toolchain: Toolchain) -> None:
    """Raises CompileError with clang's words, or the lines where a float becomes a bfloat."""
    call = f"{source.function}<{source.template}>" if source.template else source.function
    text = f"{source.text}\nvoid simulator_instantiate() {{ (void)&{call}; }}\n"
    toolchain.once(f"address spaces {text}", lambda: _check(source, text, toolchain))


def _check(source: Source, text: str, toolchain: Toolchain) -> None:
    include = [f"-I{source.include}"] if source.include else []
    said = toolchain.check_syntax(text, [*_FLAGS, *include])
    if _ERROR.search(said):
        raise CompileError(
            f"{source.name}: Metal would refuse this (memory is `device`, `constant`, "
            f"`threadgroup` or a thread's own, and pointers do not cross):\n{said}"
        )
    if lines := _INTO_BFLOAT.findall(said):
        told = "\n".join(f"  {place}: a {kind} becomes a bfloat" for place, kind in lines)
        raise CompileError(f"{source.name}: Metal wants an explicit bfloat(...) here:\n{told}")
