"""What a converted folder is made of: weights in shards, and the files beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..errors import DFlashError
from .safetensors_writer import Entry, write_safetensors

SHARD = 5 << 30
"""Bytes of a weight file, as mlx-lm cuts them."""

COMPANIONS = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "*.tiktoken",
    "tokenizer.model",
    "*.jinja",
    "chat_template.json",
    "generation_config.json",
    "draft_vocab.json",
    "LICENSE*",
    "NOTICE*",
)
"""Copied as they are. Code (*.py) never is."""

_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.uint8: "U8",
}


def copy_companions(source: Path, folder: Path, but: Collection[str] = ()) -> None:
    """Copy tokenizer, templates and licences, all `but` some; links become files."""
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and file.name not in but:
                shutil.copyfile(file, folder / file.name)


def companion_bytes(source: Path) -> int:
    """Size of what `copy_companions` copies, in bytes."""
    found = (file for pattern in COMPANIONS for file in source.glob(pattern) if file.is_file())
    return sum(file.stat().st_size for file in found)


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """All tensors of a model by name, lazy if they are."""
    return tree_flatten(model.parameters(), destination={})  # type: ignore[return-value]


def write_weights(
    weights: dict[str, mx.array], folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Compute and write `weights`, tensor by tensor, emptying the dictionary on the way.

    `progress(done, total)` counts bytes. Raises DFlashError if a number is not finite.
    """
    sizes = {name: array.nbytes for name, array in weights.items()}
    shards = _shards(sizes)
    total, done = sum(sizes.values()), 0
    for number, names in enumerate(shards, 1):
        many = f"model-{number:05}-of-{len(shards):05}.safetensors"
        file = many if len(shards) > 1 else "model.safetensors"
        entries = [_entry(weights, name) for name in names]

        def tell(written: int, _: int, before: int = done) -> None:
            progress(before + written, total)

        done += write_safetensors(folder / file, entries, metadata={"format": "mlx"}, progress=tell)
        shards[number - 1] = dict.fromkeys(names, file)
    if len(shards) > 1:
        places = {name: file for shard in shards for name, file in shard.items()}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        text = json.dumps(index, indent=2) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _shards(sizes: Mapping[str, int]) -> list[dict[str, str]]:
    """Names in order, cut where a file would pass `SHARD`."""
    shards: list[dict[str, str]] = []
    filled = 0
    for name, size in sizes.items():
        if not shards or filled + size > SHARD:
            shards.append({})
            filled = 0
        shards[-1][name] = ""
        filled += size
    return shards


def _entry(weights: dict[str, mx.array], name: str) -> Entry:
    array = weights[name]
    if array.dtype not in _NAMES:
        raise DFlashError(f"{name} is of type {array.dtype}, which is not written.")
    return Entry(name, _NAMES[array.dtype], array.shape, lambda: _numbers(weights.pop(name), name))


def _numbers(array: mx.array, name: str) -> np.ndarray:
    """The array computed; bfloat16 as the bits, which NumPy has no type for."""
    if mx.issubdtype(array.dtype, mx.floating) and not mx.isfinite(array).all().item():
        raise DFlashError(f"{name} holds numbers that are not finite in {array.dtype}.")
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
