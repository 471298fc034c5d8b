"""Read what a model's folder says of itself, without MLX and without running code.

The safetensors format: 8 bytes (little endian) with the header's length, a JSON header that gives
each tensor's dtype, shape and byte range, then the bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DFlashError
from .whole_file import read_object


@dataclass(frozen=True)
class TensorInfo:
    """What a safetensors header says of one tensor; `dtype` is "F16", "BF16", "U32", ..."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def read_json(path: Path, cure: str = "fetch it again") -> dict[str, Any]:
    """The JSON object in `path`; raises DFlashError, with the cure, if there is none."""
    if not path.parent.is_dir():
        raise DFlashError(f"There is no model folder {path.parent}.")
    missing = (
        f"{path.parent} has no {path.name}: give the folder that holds {path.name} and"
        " *.safetensors."
    )
    return read_object(path, cure, missing)


def read_optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty where there is no such file."""
    return read_json(path) if path.exists() else {}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder: those that its index names, else all.

    Raises DFlashError that names those which are missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise DFlashError(f"{index} is damaged: it names no weights; fetch it again.")
        names = set(weight_map.values())
        files = sorted(folder / Path(str(name)).name for name in names)
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.exists()]
    if missing:
        why = "which its index names" if index.exists() else "which is a link to nowhere"
        raise DFlashError(f"{folder} lacks {', '.join(missing)}, {why}: fetch it again.")
    if not files:
        raise DFlashError(f"{folder} has no model.safetensors; other weight formats are not read.")
    return files


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file; raises DFlashError unless all of their data is there."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if start == b"version ":
            raise DFlashError(f"{path} is a Git LFS pointer, not weights: run `git lfs pull`.")
        try:
            if not 0 < length <= size - 8:
                raise ValueError("the header reaches beyond the file")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            infos = {name: _info(entry) for name, entry in header.items()}
            end = 8 + length + max(entry["data_offsets"][1] for entry in header.values())
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise DFlashError(f"{path} is damaged or cut short; fetch it again.") from None
    if size < end:
        raise DFlashError(f"{path} is cut short at {size:,} of {end:,} bytes; fetch it again.")
    return infos


def _info(entry: dict[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), end - start)
