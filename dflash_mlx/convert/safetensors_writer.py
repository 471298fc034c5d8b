"""Write a safetensors file tensor by tensor.

Only one tensor is in memory at a time, its progress can be told, and a full disk is an `OSError`.
`dflash_mlx.model_folder` describes the format and reads it.
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
