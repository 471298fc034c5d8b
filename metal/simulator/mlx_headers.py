"""MLX's Metal headers, from the installed wheel, rewritten to C++ in the cache."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from . import rewrite
from .faults import SimulatorError

KERNELS = Path("mlx") / "backend" / "metal" / "kernels"


def installed() -> Path:
    """The folder `include` of the installed MLX."""
    folder = Path(mx.__file__).parent / "include"
    if not (folder / KERNELS / "utils.h").exists():
        raise SimulatorError(f"the installed MLX has no Metal headers in {folder}")
    return folder


@cache
def rewritten(cache_folder: Path) -> Path:
    """A folder for the include path; made once for each MLX and each version of the rewriter."""
    source = installed()
    key = hashlib.sha256(f"{version('mlx')}{source}".encode() + Path(rewrite.__file__).read_bytes())
    target = cache_folder / f"headers-{key.hexdigest()[:16]}"
    if target.exists():
        return target
    cache_folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache_folder))
    for header in sorted((source / KERNELS).rglob("*.h")):
        copy = folder / header.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(rewrite.to_cpp(header.read_text()))
    try:
        folder.replace(target)
    except OSError:  # another process was faster
        shutil.rmtree(folder)
    return target
