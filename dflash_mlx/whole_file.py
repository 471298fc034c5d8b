"""Files that are either whole or as they were before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place beside `path`, and rename what was written there in its stead.

    Processes run side by side, each with a place of its own. On an error nothing is left there.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole, or leave what was there."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")
