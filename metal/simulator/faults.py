"""The errors that a kernel can make, each named, with the line of the kernel's source."""

from __future__ import annotations

from dataclasses import dataclass


class SimulatorError(Exception):
    """Anything that the simulator refuses."""


class ToolchainMissing(SimulatorError):
    """No clang that can compile a kernel."""


class CompileError(SimulatorError):
    """clang did not accept the kernel; the message is clang's, with the source's own lines."""


class LaunchError(SimulatorError):
    """The launch itself is wrong: its grid, its groups, its memory, its arguments."""


@dataclass(frozen=True)
class Location:
    """A line of a kernel: `file` is the kernel's name, its header's, or a file of MLX's."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" + (
            f": `{self.text.strip()}`" if self.text.strip() else ""
        )


class KernelFault(SimulatorError):
    """A kernel did what a GPU would not forgive.

    kernel    its name
    location  where
    """

    def __init__(self, kernel: str, location: Location, message: str) -> None:
        super().__init__(f"{location}\n  {message}")
        self.kernel = kernel
        self.location = location

    @property
    def line(self) -> int:
        """The line of the kernel's source."""
        return self.location.line


class OutOfBounds(KernelFault):
    """A read or write outside a buffer, a threadgroup variable or a thread's own array."""


class InputWritten(KernelFault):
    """A store into an input."""


class Misaligned(KernelFault):
    """A vector or scalar at an address that is no multiple of its size."""


class Uninitialised(KernelFault):
    """A read of threadgroup memory, or of an output, that nobody wrote."""


class Race(KernelFault):
    """Two threads touch the same bytes, one writes, and no barrier orders them."""


class WrongMemoryFlag(Race):
    """A race across a barrier whose flags do not order that memory."""


class DivergentBarrier(KernelFault):
    """A threadgroup barrier that not all threads of the threadgroup reach."""


class DivergentCall(KernelFault):
    """A SIMD function that not all lanes of the SIMD-group reach."""


class NoSuchLane(KernelFault):
    """A shuffle from a lane that does not exist."""


class DivisionByZero(KernelFault):
    """An integer division by zero, or INT_MIN / -1."""
