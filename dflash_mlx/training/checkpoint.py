"""Checkpoints of a run: whole or absent, readable as drafters, and without pickled code.

checkpoints/step-0000400/   config.json, model.safetensors   a drafter, in float32
                            optimizer.safetensors            AdamW's two moments
                            state.json                       the step, what was best, and on what
best/                       config.json, model.safetensors   the best on held-out data
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from ..dtypes import dtype_name
from ..errors import DFlashError
from ..hub.store import atomic_folder
from .initial import Weights

KEPT = 2
"""How many checkpoints stay: if the last is damaged, the one before it is there."""


DRAFTER = "drafter"
"""The folder within a checkpoint that any command takes for a drafter."""


@dataclass(frozen=True)
class Checkpoint:
    """A run at the end of a step: float32 weights, AdamW's moments by name, and plain values."""

    weights: Weights
    moments: Weights
    state: dict[str, Any]


def save_checkpoint(folder: Path, config: Mapping[str, Any], checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below the run's `folder`, then drop older ones. Returns where."""
    place = folder / "checkpoints" / f"step-{checkpoint.state['step']:07d}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(place, replace=True) as new:
        (new / DRAFTER).mkdir()
        write_drafter(new / DRAFTER, config, checkpoint.weights)
        _save(new / "optimizer.safetensors", checkpoint.moments)
        (new / "state.json").write_text(json.dumps(checkpoint.state), encoding="utf-8")
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return place


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"))


def load_checkpoint(place: Path) -> Checkpoint:
    """Read a checkpoint back. Raises DFlashError if it is damaged."""
    try:
        weights = cast(Weights, mx.load(str(place / DRAFTER / "model.safetensors")))
        moments = cast(Weights, mx.load(str(place / "optimizer.safetensors")))
        mx.eval(weights, moments)
    except (OSError, ValueError, RuntimeError) as error:
        raise _damaged(place) from error
    return Checkpoint(weights, moments, read_state(place))


def read_state(place: Path) -> dict[str, Any]:
    """The plain values of a checkpoint. Raises DFlashError if it is damaged."""
    try:
        return cast("dict[str, Any]", json.loads((place / "state.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise _damaged(place) from error


def _damaged(place: Path) -> DFlashError:
    return DFlashError(
        f"The checkpoint {place} is damaged: remove it, and the run goes on from an older one."
    )


def write_drafter(
    folder: Path, config: Mapping[str, Any], weights: Weights, dtype: mx.Dtype = mx.float32
) -> None:
    """A drafter's `config.json` and `model.safetensors` in z-lab's packaging."""
    content = {**config, "torch_dtype": dtype_name(dtype)}
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    arrays = {name: array.astype(dtype) for name, array in weights.items()}
    _save(folder / "model.safetensors", arrays)


def _save(file: Path, arrays: Weights) -> None:
    """Write tensors. Raises DFlashError where MLX cannot, which names no reason."""
    mx.eval(arrays)
    try:
        mx.save_safetensors(str(file), arrays, {"format": "mlx"})
    except RuntimeError as error:
        raise DFlashError(
            f"{file.name} could not be written, most likely since the disk is full: free some space"
            " and run the same command again."
        ) from error
