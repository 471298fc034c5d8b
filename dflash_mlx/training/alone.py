"""One process at a time in a training's folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DFlashError


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold an existing `folder` while a stage writes there; it leaves no file, nor outlives us.

    Raises DFlashError where another process holds it. A file system that has no locks holds
    nobody off.
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DFlashError(
                f"Another `dflash-mlx train` is at work in {folder}: let it end or stop it with"
                " Ctrl-C first, or choose another --folder."
            ) from None
        except OSError:
            pass  # as of some network drives
        yield
    finally:
        os.close(place)
