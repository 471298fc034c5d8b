"""Runs Metal kernels on a CPU, refuses what a GPU would not forgive, and counts: ../README.md."""

from .arithmetic import MODELS, Arithmetic
from .counts import BufferCounts, Counts
from .faults import (
    CompileError,
    DivergentBarrier,
    DivergentCall,
    DivisionByZero,
    InputWritten,
    KernelFault,
    LaunchError,
    Location,
    Misaligned,
    NoSuchLane,
    OutOfBounds,
    Race,
    SimulatorError,
    ToolchainMissing,
    Uninitialised,
    WrongMemoryFlag,
)
from .kernel import Kernel, Source
from .stand_in import Launch, MetalKernel, Simulator
from .toolchain import Toolchain

__all__ = [
    "MODELS",
    "Arithmetic",
    "BufferCounts",
    "CompileError",
    "Counts",
    "DivergentBarrier",
    "DivergentCall",
    "DivisionByZero",
    "InputWritten",
    "Kernel",
    "KernelFault",
    "Launch",
    "LaunchError",
    "Location",
    "MetalKernel",
    "Misaligned",
    "NoSuchLane",
    "OutOfBounds",
    "Race",
    "Simulator",
    "SimulatorError",
    "Source",
    "Toolchain",
    "ToolchainMissing",
    "Uninitialised",
    "WrongMemoryFlag",
]
