"""A fault of the runtime in words: which kernel, which line, what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import faults
from .launch import FAULT_KINDS, Fault
from .toolchain import INCLUDE

if TYPE_CHECKING:
    from .kernel import Kernel

_OURS = {path.name for path in INCLUDE.rglob("*") if path.is_file()} | {"entry"}
_FLAGS = {1: "mem_device", 2: "mem_threadgroup", 4: "mem_texture"}


def locate(kernel: Kernel, site: int | None) -> faults.Location:
    """The line of the kernel's source that called from this address."""
    if not site:
        return faults.Location(kernel.source.name, 0)
    for file, line in kernel.toolchain.locate(kernel.image, site - 1 - kernel.base):
        if file in _OURS:
            continue
        lines = kernel.source.files.get(file)
        if lines is None and kernel.source.include:
            found = next(kernel.source.include.rglob(file), None)
            lines = Path(found).read_text().splitlines() if found else None
        text = lines[line - 1] if lines and line <= len(lines) else ""
        return faults.Location(file, line, text)
    return faults.Location(kernel.source.name, 0)


def _flags(flags: int) -> str:
    return " | ".join(name for bit, name in _FLAGS.items() if flags & bit) or "mem_none"


def _who(fault: Fault) -> str:
    return f"thread {fault.thread} of threadgroup ({', '.join(map(str, fault.group))})"


def _place(kernel: Kernel, fault: Fault) -> str:
    if fault.buffer >= 0:
        return f"`{kernel.buffers[fault.buffer].name}`"
    return f"threadgroup variable `{fault.name.decode()}`" if fault.name else "memory"


def _race(kernel: Kernel, fault: Fault, at: faults.Location) -> faults.KernelFault:
    """Both accesses; the fault's line is the later one, since a barrier is missing before it."""
    other = locate(kernel, fault.other_site)
    told = [(other, fault.other_thread, fault.other_write), (at, fault.thread, fault.write)]
    if at.file == other.file and other.line > at.line:
        told.reverse()
    group = f"of threadgroup ({', '.join(map(str, fault.group))})"
    (earlier, first, wrote), (later, second, writes) = told
    message = (
        f"race in {_place(kernel, fault)}, byte {fault.offset} {group}: "
        f"thread {second} {'writes' if writes else 'reads'} it here, "
        f"thread {first} {'writes' if wrote else 'reads'} it in {earlier}"
    )
    if fault.barrier_site:
        barrier = locate(kernel, fault.barrier_site)
        flags = _flags(fault.barrier_flags)
        message += f"; the barrier between them has {flags}, which does not order it ({barrier})"
        return faults.WrongMemoryFlag(kernel.source.name, later, message)
    if fault.expected:
        message += "; the other is of another threadgroup, which no barrier orders"
    else:
        message += "; no barrier is between them"
    return faults.Race(kernel.source.name, later, message)


def _divergence(kernel: Kernel, fault: Fault, at: faults.Location) -> faults.KernelFault:
    barrier = FAULT_KINDS[fault.kind] == "divergent_barrier"
    name = fault.name.decode() if fault.name else "simdgroup_barrier"
    elsewhere = f"is at {locate(kernel, fault.other_site)}" if fault.other_site else "has returned"
    message = (
        f"{name} is reached by {fault.reached} of {fault.expected} "
        f"{'threads' if barrier else 'lanes'}: thread {fault.other_thread} of threadgroup "
        f"({', '.join(map(str, fault.group))}) {elsewhere}"
    )
    kind = faults.DivergentBarrier if barrier else faults.DivergentCall
    return kind(kernel.source.name, at, message)


_SIMPLE: dict[str, tuple[type[faults.KernelFault], str]] = {
    "out_of_bounds": (
        faults.OutOfBounds,
        "{who} {verb} {bytes} bytes at byte {offset} of {place}, outside it",
    ),
    "shared_bounds": (
        faults.OutOfBounds,
        "{who} {verb} {bytes} bytes at byte {offset} of {place}, outside it",
    ),
    "wild_address": (faults.OutOfBounds, "{who} {verb} {bytes} bytes outside every buffer"),
    "array_bounds": (faults.OutOfBounds, "{who} indexes an array past its end"),
    "input_written": (faults.InputWritten, "{who} writes into the input {place}"),
    "uninitialised": (
        faults.Uninitialised,
        "{who} reads byte {offset} of {place}, which no thread has written",
    ),
    "misaligned": (
        faults.Misaligned,
        "{who} {verb} {bytes} bytes at an address that is no multiple of {bytes}",
    ),
    "bad_lane": (faults.NoSuchLane, "{who} asks lane {lane} in {function}: there is none"),
    "division": (faults.DivisionByZero, "{who} divides by zero, or the quotient overflows"),
}


def explain(kernel: Kernel, fault: Fault) -> faults.KernelFault:
    """The exception for a fault."""
    at = locate(kernel, fault.site)
    kind = FAULT_KINDS[fault.kind]
    if kind == "race":
        return _race(kernel, fault, at)
    if kind.startswith("divergent"):
        return _divergence(kernel, fault, at)
    exception, message = _SIMPLE[kind]
    told = message.format(
        who=_who(fault),
        verb="writes" if fault.write else "reads",
        bytes=fault.bytes,
        offset=fault.offset,
        place=_place(kernel, fault),
        lane=fault.reached,
        function=fault.name.decode() if fault.name else "",
    )
    return exception(kernel.source.name, at, told)
