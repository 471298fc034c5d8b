"""The simulator as a kernel author meets it: a stand-in for ``mx.fast.metal_kernel``, with counts.

It is given to whoever builds kernels, never put into mlx:
``make_op(metal_kernel=simulator.metal_kernel)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from . import generated, mlx_headers
from .address_spaces import check_address_spaces
from .arithmetic import Arithmetic
from .arrays import is_row_contiguous, to_mlx, to_numpy
from .counts import Counts
from .faults import LaunchError
from .kernel import Kernel, Triple
from .toolchain import Toolchain


@dataclass(frozen=True)
class Launch:
    """One launch, for those who want to see them apart."""

    kernel: str
    grid: Triple
    threadgroup: Triple
    counts: Counts


class Simulator:
    """Compiles and runs kernels on the CPU.

    arithmetic   the model of what Metal leaves open
    max_threads  in a threadgroup; 256 is what a kernel with many registers gets on a GPU
    cache        where compiled kernels are kept
    seed         the order in which threadgroups run
    launches     every launch so far
    """

    def __init__(
        self,
        arithmetic: Arithmetic | None = None,
        *,
        max_threads: int = 256,
        cache: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.toolchain = Toolchain.find(cache)
        self.arithmetic = arithmetic or Arithmetic()
        self.max_threads = max_threads
        self.seed = seed
        self.launches: list[Launch] = []

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """The sum of what is launched inside, filled in at the end."""
        first, counts = len(self.launches), Counts()
        yield counts
        total = sum((launch.counts for launch in self.launches[first:]), Counts())
        vars(counts).update(vars(total))

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
    ) -> MetalKernel:
        """As ``mx.fast.metal_kernel``: same arguments, and the result is called alike."""
        return MetalKernel(
            self,
            name,
            list(input_names),
            list(output_names),
            source,
            header,
            ensure_row_contiguous,
            atomic_outputs,
        )


def _clipped(threadgroup: Triple, grid: Triple) -> Triple:
    """MLX makes no threadgroup larger than the grid."""
    x, y, z = (min(t, g) for t, g in zip(threadgroup, grid, strict=True))
    return x, y, z


class MetalKernel:
    """What ``Simulator.metal_kernel`` returns: call it as MLX's."""

    def __init__(
        self,
        simulator: Simulator,
        name: str,
        input_names: list[str],
        output_names: list[str],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
        atomic_outputs: bool,
    ) -> None:
        self.simulator = simulator
        self.name = name
        self.input_names = input_names
        self.output_names = output_names
        self.source = source
        self.header = header
        self.ensure_row_contiguous = ensure_row_contiguous
        # MLX's own kernel object, asked only for the source that it would compile.
        self._mlx = mx.fast.metal_kernel(
            name=name,
            input_names=input_names,
            output_names=output_names,
            source=source,
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
        )
        self._kernels: dict[Any, Kernel] = {}

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Triple,
        threadgroup: Triple,
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """Evaluate the inputs, run the kernel, return its outputs; raises its faults.

        `verbose` prints the generated source, `stream` is accepted and ignored.
        """
        arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        call: dict[str, Any] = {
            "output_shapes": [tuple(shape) for shape in output_shapes],
            "output_dtypes": list(output_dtypes),
            "grid": tuple(grid),
            "threadgroup": tuple(threadgroup),
            **({"template": list(template)} if template else {}),
        }
        kernel = self._kernel(arrays, call)
        if verbose:
            print(kernel.source.metal)
        mx.eval(arrays)
        arguments = dict(zip(self.input_names, map(to_numpy, arrays), strict=True))
        copied = self._make_contiguous(arrays, arguments)
        self._describe(kernel, arrays, arguments)
        outputs = self._outputs(call["output_shapes"], output_dtypes, init_value)
        counts = kernel.launch(
            {**arguments, **outputs},
            grid=grid,
            threadgroup=_clipped(threadgroup, grid),
            outputs=self.output_names,
            initialised=init_value is not None,
            arithmetic=self.simulator.arithmetic,
            max_threads=self.simulator.max_threads,
            seed=self.simulator.seed,
        )
        counts.copied_bytes = copied
        counts.launches += len(outputs) if init_value is not None else 0
        self.simulator.launches.append(Launch(self.name, grid, threadgroup, counts))
        return [to_mlx(a, d) for a, d in zip(outputs.values(), output_dtypes, strict=True)]

    @property
    def variants(self) -> list[Kernel]:
        """What has been compiled: one for each set of types and template arguments."""
        return list(self._kernels.values())

    def _outputs(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        init_value: float | None,
    ) -> dict[str, np.ndarray]:
        """Fresh arrays; MLX fills them, with a kernel each, only if there is a value."""
        outputs = {}
        for name, shape, dtype in zip(self.output_names, shapes, dtypes, strict=True):
            value = to_numpy(mx.array([init_value or 0]).astype(dtype))[0]
            outputs[name] = np.full(tuple(shape), value)
        return outputs

    def _kernel(self, arrays: list[mx.array], call: dict[str, Any]) -> Kernel:
        # MLX's signature depends on each input's dtype, on whether it is a scalar, and on whether
        # it is small.
        key = (
            tuple((a.dtype, a.ndim, min(a.size, 64)) for a in arrays),
            tuple(call["output_dtypes"]),
            tuple(call.get("template", ())),
        )
        if key not in self._kernels:
            text = generated.generate(self._mlx, [mx.zeros(a.shape, a.dtype) for a in arrays], call)
            toolchain = self.simulator.toolchain
            include = mlx_headers.rewritten(toolchain.cache)
            source = generated.as_source(self.name, text, self.header, self.source, include)
            check_address_spaces(source, toolchain)
            self._kernels[key] = Kernel(
                source, toolchain, contract=self.simulator.arithmetic.contract
            )
        return self._kernels[key]

    def _make_contiguous(self, arrays: list[mx.array], arguments: dict[str, np.ndarray]) -> int:
        """Copy inputs as MLX would before the launch; returns the bytes read and written."""
        copied = 0
        for name, array in zip(self.input_names, arrays, strict=True):
            if not is_row_contiguous(array):
                if not self.ensure_row_contiguous:
                    raise LaunchError(
                        f"{self.name}: `{name}` has gaps, and the simulator passes whole arrays "
                        "only: pass the full buffer and its length, or let MLX copy it"
                    )
                copied += 2 * array.nbytes
            arguments[name] = np.ascontiguousarray(arguments[name])
        return copied

    def _describe(
        self, kernel: Kernel, arrays: list[mx.array], arguments: dict[str, np.ndarray]
    ) -> None:
        """The shapes, strides and ranks that MLX adds for the inputs whose source asks for them."""
        asked = {p.name for p in kernel.buffers} - arguments.keys()
        for name, array in zip(self.input_names, arrays, strict=True):
            shape = list(array.shape)
            strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            for suffix, values, dtype in (
                ("shape", shape, np.int32),
                ("strides", strides, np.int64),
                ("ndim", [len(shape)], np.int32),
            ):
                if f"{name}_{suffix}" in asked:
                    arguments[f"{name}_{suffix}"] = np.array(values or [0], dtype=dtype)
