"""The runtime, loaded; and a launch as it understands it (mirrors runtime/launch.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path


class BufferRequest(ctypes.Structure):
    """A kernel argument's memory; the last five fields are the runtime's answer."""

    _fields_ = [
        ("data", c_void_p),
        ("size", c_uint64),
        ("writable", c_uint32),
        ("initialised", c_uint32),
        ("read_bytes", c_uint64),
        ("read_sectors", c_uint64),
        ("written_bytes", c_uint64),
        ("written_sectors", c_uint64),
        ("unwritten_bytes", c_uint64),
    ]


FAULT_KINDS = (
    "none",
    "out_of_bounds",
    "wild_address",
    "input_written",
    "shared_bounds",
    "uninitialised",
    "race",
    "divergent_barrier",
    "divergent_simd",
    "bad_lane",
    "misaligned",
    "array_bounds",
    "division",
)


class Fault(ctypes.Structure):
    """What went wrong, if `kind` is not 0."""

    _fields_ = [
        ("kind", c_uint32),
        ("write", c_uint32),
        ("other_write", c_uint32),
        ("thread", c_uint32),
        ("other_thread", c_uint32),
        ("group", c_uint32 * 3),
        ("reached", c_uint32),
        ("expected", c_uint32),
        ("barrier_flags", c_uint32),
        ("buffer", c_int32),
        ("bytes", c_uint32),
        ("offset", c_int64),
        ("site", c_void_p),
        ("other_site", c_void_p),
        ("barrier_site", c_void_p),
        ("name", c_char_p),
    ]


class ArithmeticChoice(ctypes.Structure):
    """The choices that the runtime makes; contraction and flushing are made elsewhere."""

    _fields_ = [("exp_ulp", c_int32), ("tree_mma", c_int32), ("sequential_sum", c_int32)]


class Request(ctypes.Structure):
    """A launch and its answers."""

    _fields_ = [
        ("entry", c_void_p),
        ("buffers", ctypes.POINTER(BufferRequest)),
        ("shared_begin", c_void_p),
        ("shared_end", c_void_p),
        ("image", c_void_p),
        ("buffer_count", c_uint32),
        ("grid", c_uint32 * 3),
        ("group", c_uint32 * 3),
        ("flush", c_uint32),
        ("arithmetic", ArithmeticChoice),
        ("seed", c_uint64),
        ("threadgroups", c_uint64),
        ("barriers", c_uint64),
        ("simd_barriers", c_uint64),
        ("simd_calls", c_uint64),
        ("matrix_operations", c_uint64),
        ("shared_read_bytes", c_uint64),
        ("shared_written_bytes", c_uint64),
        ("fault", Fault),
    ]


class SharedHeader(ctypes.Structure):
    """What lies before each threadgroup variable (64 bytes)."""

    _fields_ = [
        ("name", c_char_p),
        ("size", c_uint32),
        ("total", c_uint32),
        ("line", c_uint32),
        ("padding", c_uint32 * 11),
    ]


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("fname", c_char_p),
        ("fbase", c_void_p),
        ("sname", c_char_p),
        ("saddr", c_void_p),
    ]


@cache
def load_runtime(path: Path) -> ctypes.CDLL:
    """The runtime, with its symbols visible to the kernels that are loaded after it."""
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def image_base(address: int) -> int:
    """Where the shared object that contains this address was loaded."""
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(c_void_p(address), ctypes.byref(info))
    return int(info.fbase)
