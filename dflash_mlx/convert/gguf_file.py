"""Open a GGUF file: its metadata and its tensors, in the types that the file itself names.

Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3. The PyPI package `gguf` knows
ggml's types and their sizes; its own reader takes seconds for the tokens of a vocabulary, and
`mx.load` turns BF16 and the K-quants into float16 without a word, so neither opens the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DFlashError

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_NUMBERS = {"F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor as stored.

    `shape` is row-major (out, in); `type` is ggml's name ("Q4_1", "BF16", ...). `data` is a view of
    the file: numbers in `shape` for F16 and F32, else bytes [out, bytes of a row].
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True)
class GGUFFile:
    """Metadata by key and tensors by name, in file order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    @property
    def architecture(self) -> str:
        """ggml's name of the model family, such as "llama"."""
        return str(self.metadata.get("general.architecture", "unnamed"))

    def number(self, key: str, default: float | None = None) -> float:
        """A metadata number; raises DFlashError that names the key if it is none, or not there."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise DFlashError(
                f"{self.path} has no single number as '{key}': it cannot be imported."
            )
        return value

    def strings(self, key: str) -> list[str]:
        """A metadata list of texts; raises DFlashError that names the key if it is not there."""
        value = self.metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise DFlashError(
                f"{self.path} has no list of texts as '{key}': it cannot be imported."
            )
        return value


class _Damaged(Exception):
    """The bytes are not what the format says; the message tells where."""


def read_gguf(path: Path) -> GGUFFile:
    """Open `path`; tensor data stays on disk until it is used.

    Raises DFlashError if the file is missing, not GGUF, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise DFlashError(
                    f"{path} is not a GGUF file (it does not begin with 'GGUF'): fetch it again."
                )
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DFlashError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        return _parse(path, data)
    except (_Damaged, UnicodeDecodeError) as error:
        raise DFlashError(f"{path} is truncated or damaged ({error}): fetch it again.") from error


def _parse(path: Path, data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(data, at=4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise DFlashError(
            f"{path} is GGUF version {version} or big-endian: only little-endian versions 2 and 3"
            " can be read."
        )
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    infos = [_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"its alignment is {alignment}")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, type_, offset in infos:
        if name in tensors:
            raise _Damaged(f"it holds tensor {name} twice")
        tensors[name] = _tensor(data, name, shape, type_, start + offset)
    return GGUFFile(path, metadata, tensors)


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type number and offset of the next tensor."""
    name = cursor.string()
    dimensions = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
    return name, tuple(reversed(dimensions)), cursor.scalar("I"), cursor.scalar("Q")


def _tensor(
    data: mmap.mmap, name: str, shape: tuple[int, ...], type_: int, offset: int
) -> GGUFTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_)
    except ValueError:
        raise _Damaged(f"tensor {name} is of a type, {type_}, that ggml did not know") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or 0 in shape or shape[-1] % block:
        raise _Damaged(f"rows of tensor {name} are no whole number of {kind.name} blocks")
    count = prod(shape) // block * block_bytes
    if offset + count > len(data):
        raise _Damaged(f"it ends before tensor {name} does")
    raw = np.frombuffer(data, dtype=np.uint8, count=count, offset=offset)
    if kind.name in _NUMBERS:
        return GGUFTensor(name, kind.name, shape, raw.view(_NUMBERS[kind.name]).reshape(shape))
    row_bytes = shape[-1] // block * block_bytes
    return GGUFTensor(name, kind.name, shape, raw.reshape(*shape[:-1], row_bytes))


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise _Damaged("it ends within its header")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8")

    def value(self, type_: int) -> Any:
        """A metadata value: a number, a string, or a list of such."""
        if type_ == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in _SCALARS:
                dtype = np.dtype("<" + _SCALARS[inner])
                return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            if inner == _STRING:
                return [self.string() for _ in range(count)]
        if type_ == _STRING:
            return self.string()
        if type_ in _SCALARS:
            return self.scalar(_SCALARS[type_])
        raise _Damaged(f"metadata of an unknown type, {type_}")
