"""Take a language model for conversion, and make its config say what its tensors are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model, save_config

from ..dtypes import DTYPES
from ..errors import DFlashError
from ..model_folder import read_json, weight_files
from .source import Source, read_headers

TIED = "tie_word_embeddings"


def open_target(folder: Path, *, only_headers: bool = False) -> Source:
    """The model in `folder`, nothing of it computed.

    Whether the head is tied to the embedding follows from the tensors: a head of its own wins over
    a config that says otherwise, unless it is the embedding once more (`only_headers` does not
    look). Raises DFlashError.
    """
    infos = read_headers(folder)
    config = read_json(folder / "config.json")
    notes: list[str] = []
    tied = _tied(folder, config, infos, only_headers, notes)
    try:
        model, loaded = load_model(folder, lazy=True, model_config=tied)
    except (ValueError, KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
        lacks = f"its config.json lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = lacks.strip().split("\n")[0].rstrip(".")
        raise DFlashError(
            f"{folder} cannot be loaded as a model ({reason}): fetch it again, or choose another."
        ) from error
    nbytes = sum(info.nbytes for info in infos.values())
    return Source(folder, model, loaded, len(infos), nbytes, notes)


def own_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config states, where mlx-lm looks for it; None if there is none."""
    stated = config.get("torch_dtype") or (config.get("text_config") or {}).get("dtype")
    return stated if stated in DTYPES else None


def write_config(source: Source, folder: Path) -> None:
    """Write `config.json` in mlx-lm's form."""
    vision = "vision_tower" in getattr(source.model, "model", {})
    save_config(source.config, folder / "config.json", keep_vision_config=vision)


def _tied(
    folder: Path,
    config: Mapping[str, Any],
    names: Iterable[str],
    only_headers: bool,
    notes: list[str],
) -> dict[str, Any]:
    """What to change in the config, so that its flag follows the tensors."""
    nested = TIED not in config and TIED in (config.get("text_config") or {})
    place = config["text_config"] if nested else config
    flag = place.get(TIED)
    head = next((n for n in names if n.endswith("lm_head.weight")), None)
    if head is None:
        if flag is not False:
            return {}
        truth = True
        notes.append(f"{TIED} is now true: there is no lm_head among the tensors.")
    else:
        if flag is False:
            return {}
        if only_headers:
            notes.append(f"{head} is there, though {TIED} is {flag}: converting compares the two.")
            return {}
        if _is_embedding(folder, head):
            notes.append(f"{head} is left out: it is the embedding once more.")
            return {}
        truth = False
        notes.append(f"{TIED} is now false: {head} differs from the embedding.")
    return {"text_config": {**place, TIED: truth}} if nested else {TIED: truth}


def _is_embedding(folder: Path, head: str) -> bool:
    """Whether tensor `head` equals the embedding table."""
    arrays: dict[str, mx.array] = {}
    for file in weight_files(folder):
        arrays |= mx.load(str(file))  # type: ignore[arg-type]
    tables = [name for name in arrays if name.endswith("embed_tokens.weight")]
    return any(bool(mx.array_equal(arrays[head], arrays[name])) for name in tables)
