"""Take a drafter for conversion: any packaging that loads, written in z-lab's with MLX's key."""

from __future__ import annotations

import json
from pathlib import Path

from ..drafter import load_drafter
from ..errors import DFlashError
from ..model_folder import read_json
from .source import Source, read_headers


def open_drafter(folder: Path) -> Source:
    """The drafter in `folder`, nothing of it computed. Raises DFlashError."""
    infos = read_headers(folder)
    config = read_json(folder / "config.json")
    if "quantization" in config:
        raise DFlashError(
            f"The drafter in {folder} is quantized already: convert the original drafter."
        )
    drafter = load_drafter(folder, lazy=True)
    nbytes = sum(info.nbytes for info in infos.values())
    return Source(folder, drafter, config, len(infos), nbytes)


def write_config(source: Source, folder: Path) -> None:
    """Write `config.json` as it was, with what conversion added."""
    text = json.dumps(source.config, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
