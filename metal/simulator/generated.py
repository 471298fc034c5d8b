"""MLX's own generated source for a `mx.fast.metal_kernel` call, on a machine without Metal.

`mx.export_function` traces the call and evaluates nothing, and with ``verbose=True`` MLX prints
what it would compile. So the signature, the attributes and the template instantiation under test
are MLX's, not ours.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from .faults import CompileError, SimulatorError
from .kernel import Source
from .rewrite import to_cpp

PRELUDE = """#include <metal_stdlib>
#include "mlx/backend/metal/kernels/utils.h"
using namespace metal;
"""


@dataclass(frozen=True)
class Generated:
    """What MLX would hand to Metal's compiler, after its own utilities."""

    text: str
    function: str
    template: str  # "bfloat16_t, 3", or "" for a kernel without template arguments


def _captured(action: Callable[[], None]) -> str:
    """Everything that C++ writes to file descriptor 1 meanwhile."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    saved = os.dup(1)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 1)
            try:
                action()
            finally:
                flush(None)
                os.dup2(saved, 1)
            file.seek(0)
            return file.read().decode()
    finally:
        os.close(saved)


def generate(kernel: Any, inputs: Sequence[mx.array], call: dict[str, Any]) -> Generated:
    """Trace `kernel(inputs=..., **call)` of MLX and read the source that it would compile."""

    def traced(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(kernel(inputs=list(arrays), **{**call, "verbose": True}))

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trace.mlxfn")
        printed = _captured(lambda: mx.export_function(path, traced, *inputs))
    found = re.search(r"Generated source code for `[^`]*`:\n```\n(.*)\n```", printed, re.DOTALL)
    if found is None:
        raise SimulatorError("MLX no longer prints a kernel's source as the simulator reads it")
    return _parse(found.group(1))


def _parse(text: str) -> Generated:
    instance = re.search(
        r"^template \[\[host_name\(\"[^\"]*\"\)\]\] \[\[kernel\]\] decltype\((\w+)<(.*)>\) .*;$",
        text,
        re.MULTILINE,
    )
    if instance:
        return Generated(text[: instance.start()], instance.group(1), instance.group(2))
    plain = re.findall(r"\[\[kernel\]\] void (\w+)\(", text)
    if not plain:
        raise SimulatorError("no kernel in the source that MLX generated")
    return Generated(text, plain[-1], "")


def as_source(name: str, generated: Generated, header: str, body: str, include: Path) -> Source:
    """C++ for a generated kernel; lines of `header` and `body` are numbered as in their text."""
    at = generated.text.rfind(body)
    if not generated.text.startswith(header) or at < 0:
        raise SimulatorError(
            f"MLX changed the source of {name} in a way that the simulator does not expect"
        )
    if "SIMULATOR_SHARED" in (cpp_header := to_cpp(header)):
        raise CompileError(
            f"{name}: its header declares a threadgroup variable; Metal has them in kernels only"
        )
    signature, rest = generated.text[len(header) : at], generated.text[at + len(body) :]
    parts = [
        PRELUDE,
        f'#line 1 "{name}.header"\n{cpp_header}\n',
        f'#line 1 "{name}.signature"\n{to_cpp(signature)}\n',
        f'#line 1 "{name}"\n{to_cpp(body)}',
        to_cpp(rest),
    ]
    return Source(
        name=name,
        text="".join(parts),
        metal=signature,
        function=generated.function,
        template=generated.template,
        files={name: body.splitlines(), f"{name}.header": header.splitlines()},
        include=include,
    )
