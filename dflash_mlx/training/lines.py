"""The lines of text files, gzipped or not: what prompts and conversations are read from."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DFlashError, UsageError


def numbered_lines(path: Path, wanted: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line that is not blank.

    Raises UsageError where there is no such file, asking for `wanted`; DFlashError where it is
    damaged, or no text.
    """
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}: name {wanted}.") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError):
        raise DFlashError(f"{path} is damaged: it cannot be read as text.") from None
