"""Where the Metal sources are, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..errors import DFlashError


@cache
def source_folder() -> Path:
    """The folder of the Metal sources: `dflash_mlx/metal` of a wheel, `metal` of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "metal", package.parent / "metal"):
        if folder.is_dir():
            return folder
    raise DFlashError("The Metal sources are missing from this installation: reinstall dflash-mlx.")
