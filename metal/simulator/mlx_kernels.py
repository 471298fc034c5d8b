"""MLX's own kernels, from the installed wheel: the simulator's test, and the measure of ours.

A kernel of MLX is a template; `mlx_kernel` instantiates one. Its launch is MLX's C++ and not in the
wheel, so the caller gives grid and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import mlx_headers
from .kernel import Kernel, Source
from .toolchain import Toolchain

ATTENTION = ("sdpa_vector.h",)
QUANTIZED = ("steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")


def mlx_kernel(
    toolchain: Toolchain,
    headers: Sequence[str],
    function: str,
    template: str,
    *,
    contract: bool = True,
) -> Kernel:
    """`function<template>` of MLX's headers (names below mlx/backend/metal/kernels), compiled."""
    include = mlx_headers.rewritten(toolchain.cache)
    lines = ["#include <metal_stdlib>", "using namespace metal;"]
    lines += [f'#include "{mlx_headers.KERNELS / name}"' for name in ("utils.h", *headers)]
    metal = (mlx_headers.installed() / mlx_headers.KERNELS / headers[-1]).read_text()
    source = Source(
        name=function,
        text="\n".join(lines) + "\n",
        metal=metal,
        function=function,
        template=template,
        include=include,
    )
    return Kernel(source, toolchain, contract=contract)
