"""A compiled kernel: its arguments by name, its launch, its counts, its faults."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from . import launch as abi
from . import operations, rewrite
from .arithmetic import Arithmetic
from .counts import BufferCounts, Counts
from .faults import LaunchError
from .report import explain
from .toolchain import Toolchain

THREADGROUP_MEMORY = 32 * 1024  # bytes, of every Apple GPU
MAX_THREADS = 1024  # in a threadgroup, if registers allow

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Source:
    """Metal source and where its lines come from.

    text      C++ text for clang (rewritten Metal, with #line directives), without the entry
    metal     the Metal text in which the kernel's signature stands
    function  the kernel's name
    template  its template arguments, or ""
    files     lines of each named part, for messages: {"name": ["line 1", ...]}
    include   a folder of rewritten headers
    """

    name: str
    text: str
    metal: str
    function: str
    template: str = ""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    include: Path | None = None


class Kernel:
    """One kernel, compiled once for each choice of contraction."""

    def __init__(self, source: Source, toolchain: Toolchain, *, contract: bool = True) -> None:
        self.source = source
        self.toolchain = toolchain
        self.parameters = rewrite.parameters(source.metal, source.function)
        self.buffers = [p for p in self.parameters if not p.builtin]
        call = f"{source.function}<{source.template}>" if source.template else source.function
        entry = rewrite.entry(call, self.parameters)
        self.image = toolchain.kernel(
            f'{source.text}\n#line 1 "entry"\n{entry}',
            contract=contract,
            include=source.include,
            instrument=operations.instrument,
        )

    @cached_property
    def _library(self) -> ctypes.CDLL:
        abi.load_runtime(self.toolchain.runtime)
        return ctypes.CDLL(str(self.image))

    @cached_property
    def _entry(self) -> int:
        return ctypes.cast(self._library.simulator_entry, ctypes.c_void_p).value or 0

    @cached_property
    def base(self) -> int:
        """Where the kernel's code was loaded."""
        return abi.image_base(self._entry)

    def _address(self, function: str) -> int:
        call = self._library[function]
        call.restype = ctypes.c_void_p
        return int(call() or 0)

    @cached_property
    def _shared(self) -> tuple[int, int]:
        begin, end = self._address("simulator_shared_begin"), self._address("simulator_shared_end")
        return (begin, end) if begin else (0, 0)

    @cached_property
    def threadgroup_variables(self) -> list[tuple[str, int]]:
        """Name and bytes of each threadgroup variable that the kernel declares."""
        at, end = self._shared
        found = []
        while at < end:
            header = abi.SharedHeader.from_address(at)
            found.append((header.name.decode(), header.size))
            at += header.total
        return found

    def set_constants(self, constants: Mapping[str, bool | int]) -> None:
        """Give Metal function constants their values for the next launches."""
        for name, value in constants.items():
            kind = ctypes.c_bool if isinstance(value, bool) else ctypes.c_int
            kind.in_dll(self._library, name).value = value

    def _check(self, grid: Triple, group: Triple, max_threads: int) -> None:
        name, threads = self.source.name, math.prod(group)
        if threads > max_threads:
            raise LaunchError(
                f"{name}: a threadgroup of {threads} threads; at most {max_threads} fit"
            )
        if min(grid) < 1 or min(group) < 1:
            raise LaunchError(f"{name}: the grid {grid} in groups of {group} has no threads")
        memory = sum(size for _, size in self.threadgroup_variables)
        if memory > THREADGROUP_MEMORY:
            parts = ", ".join(f"`{n}` {size}" for n, size in self.threadgroup_variables)
            raise LaunchError(
                f"{name}: {memory} bytes of threadgroup memory ({parts}); "
                f"a GPU has {THREADGROUP_MEMORY}"
            )

    def launch(
        self,
        arguments: Mapping[str, np.ndarray],
        *,
        grid: Triple,
        threadgroup: Triple,
        outputs: Sequence[str],
        initialised: bool = False,
        arithmetic: Arithmetic | None = None,
        max_threads: int = MAX_THREADS,
        seed: int = 0,
    ) -> Counts:
        """Run over `grid` threads in groups of `threadgroup`; `outputs` are written in place.

        Every buffer of the kernel needs an array; those that a function constant switches off may
        be missing. Outputs count as never written unless `initialised`. Raises KernelFault for what
        the kernel does wrong and LaunchError for a launch that cannot be.
        """
        self._check(grid, threadgroup, max_threads)
        arithmetic = arithmetic or Arithmetic()
        requests = self._requests(arguments, outputs, initialised)
        begin, end = self._shared
        request = abi.Request(
            entry=self._entry,
            buffers=requests,
            shared_begin=begin,
            shared_end=end,
            image=self.base,
            buffer_count=len(self.buffers),
            grid=grid,
            group=threadgroup,
            flush=arithmetic.flush,
            arithmetic=abi.ArithmeticChoice(
                arithmetic.exp_ulp, arithmetic.tree_mma, arithmetic.sequential_sum
            ),
            seed=seed,
        )
        counters = self._counters()
        ctypes.memset(counters, 0, ctypes.sizeof(counters))
        runtime = abi.load_runtime(self.toolchain.runtime)
        if runtime.simulator_launch(ctypes.byref(request)):
            raise LaunchError(f"{self.source.name}: no address space for the buffers")
        if request.fault.kind:
            raise explain(self, request.fault)
        return self._counts(request, requests, counters)

    def _requests(
        self, arguments: Mapping[str, np.ndarray], outputs: Sequence[str], initialised: bool
    ) -> ctypes.Array[abi.BufferRequest]:
        """The kernel's buffers in order; one without an array has no bytes."""
        requests = (abi.BufferRequest * max(len(self.buffers), 1))()
        for request, parameter in zip(requests, self.buffers, strict=False):
            array = arguments.get(parameter.name)
            if array is None:
                continue
            if not array.flags.c_contiguous:
                raise LaunchError(f"{self.source.name}: `{parameter.name}` is not contiguous")
            request.data = array.ctypes.data
            request.size = array.nbytes
            request.writable = parameter.name in outputs
            request.initialised = initialised or not request.writable
        return requests

    def _counters(self) -> ctypes.Array[ctypes.c_uint64]:
        count = ctypes.c_uint64.in_dll(self._library, f"{operations.COUNTERS}_count").value
        return (ctypes.c_uint64 * count).in_dll(self._library, operations.COUNTERS)

    def _counts(
        self,
        request: abi.Request,
        requests: ctypes.Array[abi.BufferRequest],
        counters: ctypes.Array[ctypes.c_uint64],
    ) -> Counts:
        table = (ctypes.c_int32 * (len(counters) * 4)).in_dll(
            self._library, f"{operations.COUNTERS}_table"
        )
        named = list(zip(self.buffers, requests, strict=False))
        return Counts(
            launches=1,
            threadgroups=request.threadgroups,
            threads=math.prod(request.grid),
            threadgroup_memory=sum(size for _, size in self.threadgroup_variables),
            barriers=request.barriers,
            simd_barriers=request.simd_barriers,
            simd_calls=request.simd_calls,
            matrix_operations=request.matrix_operations,
            shared_read_bytes=request.shared_read_bytes,
            shared_written_bytes=request.shared_written_bytes,
            constant_bytes=sum(r.read_bytes for p, r in named if p.constant),
            operations=operations.total(list(counters), list(table)),
            buffers={
                p.name: BufferCounts(
                    r.read_bytes,
                    r.read_sectors,
                    r.written_bytes,
                    r.written_sectors,
                    r.unwritten_bytes,
                )
                for p, r in named
                if not p.constant
            },
        )
