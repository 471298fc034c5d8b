"""Read the header of a safetensors file, and write one tensor by tensor.

Format: 8 bytes (little endian) with the header's length, a JSON header that gives each tensor's
dtype, shape and byte range, then the bytes. Writing here streams: one tensor is in memory at a
time, and a full disk is an `OSError`.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DFlashError

ITEM_BYTES = {
    "BOOL": 1,
    "I8": 1,
    "U8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class Entry:
    """One tensor to write.

    `dtype` is a safetensors name; `data()` makes the array when its turn comes. bfloat16 has no
    NumPy dtype: its array is uint16 with the same bits.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in the file, in bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def write_safetensors(
    path: Path,
    entries: Iterable[Entry],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write `entries` to `path`; returns the bytes of tensor data, which `progress` counts."""
    entries = list(entries)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    total = 0
    for entry in entries:
        end = total + entry.nbytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (total, end),
        }
        total = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start on a multiple of 8

    done = 0
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            array = np.ascontiguousarray(entry.data())
            if array.nbytes != entry.nbytes or array.shape != entry.shape:
                raise ValueError(f"{entry.name} is {array.shape}, announced as {entry.shape}")
            file.write(array.data)
            done += array.nbytes
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return total


def read_header(path: Path) -> dict[str, Any]:
    """The header of `path`: {"dtype", "shape", "data_offsets"} by tensor, and any "__metadata__".

    Raises `DFlashError` unless the file is exactly as long as its header says.
    """
    damaged = f"{path} is truncated or not a safetensors file: fetch or convert the model again."
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if 8 + length > size:
                raise DFlashError(damaged)
            header = json.loads(file.read(length))
        ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
    except OSError as error:
        raise DFlashError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DFlashError(damaged) from error
    if 8 + length + max(ends, default=0) != size:
        raise DFlashError(damaged)
    return header
