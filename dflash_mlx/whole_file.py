"""Files that are either whole or as they were before, and the JSON objects that some hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import DFlashError


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


def read_object(path: Path, cure: str, missing: str | None = None) -> dict[str, Any]:
    """The JSON object in a file.

    Raises DFlashError, with the cure where it holds another thing; `missing` says all there is to
    say where there is no file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            raise DFlashError(missing) from None
        raise DFlashError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        raise DFlashError(f"{path} is damaged: it does not hold JSON; {cure}.") from None
    if not isinstance(value, dict):
        raise DFlashError(f"{path} does not hold a JSON object; {cure}.")
    return value
