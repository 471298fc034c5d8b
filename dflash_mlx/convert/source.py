"""A model as the converter takes it: its modules with weights that are still on the disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from ..dtypes import DTYPES
from ..errors import DFlashError
from ..model_folder import TensorInfo, read_header, read_json, weight_files
from .quantize import is_float


@dataclass
class Source:
    """A model in `folder`: lazy modules, its config, the size of its files, notes for a person.

    `left_out` are files of the folder that do not come along.
    """

    folder: Path
    model: nn.Module
    config: dict[str, Any]
    tensors: int
    nbytes: int
    notes: list[str] = field(default_factory=list)
    left_out: tuple[str, ...] = ()

    def cast(self, dtype: str) -> None:
        """Make floats `dtype`, lazily, but those that the model wants left as they are."""
        wanted = DTYPES[dtype]
        castable = getattr(self.model, "cast_predicate", lambda path: True)

        def cast(path: str, array: mx.array) -> mx.array:
            return array.astype(wanted) if castable(path) and is_float(array) else array

        self.model.update(tree_map_with_path(cast, self.model.parameters()))
        for place in (self.config, self.config.get("text_config", {})):
            place |= {key: dtype for key in ("torch_dtype", "dtype") if key in place}


def read_headers(folder: Path) -> dict[str, TensorInfo]:
    """All tensors of a folder by its headers. Raises DFlashError if one is missing."""
    infos: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        infos |= read_header(file)
    index = folder / "model.safetensors.index.json"
    named = read_json(index)["weight_map"] if index.exists() else {}
    missing = sorted(set(named) - set(infos))
    if missing:
        raise DFlashError(
            f"{folder} lacks {len(missing)} tensors that its index names ({missing[0]}, ...): fetch"
            " it again."
        )
    return infos
