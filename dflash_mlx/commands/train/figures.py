"""What `train eval` measured: a file that it adds to, and that `train export` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import DFlashError
from ...whole_file import write_whole

SAME = ("drafter", "set", "temperature", "rows")
"""What figures are of: those of all four alike replace one another."""


def read_figures(path: Path) -> list[dict[str, Any]]:
    """The rows of the file, none if there is no file. Raises DFlashError for a damaged one."""
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DFlashError(f"{path} is damaged: delete it, and evaluate again what it told.")
    return rows


def is_measured(path: Path, row: Mapping[str, Any]) -> bool:
    """Whether the file has what `row` is to be of, and the very same was `asked`."""
    names = (*SAME, "asked")
    return any(all(old.get(name) == row[name] for name in names) for old in read_figures(path))


def keep_figures(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was measured; the same sets measured earlier are replaced."""
    new = {tuple(row.get(name) for name in SAME) for row in rows}
    earlier = read_figures(path)
    kept = [row for row in earlier if tuple(row.get(name) for name in SAME) not in new]
    write_whole(path, json.dumps({"rows": [*kept, *rows]}, indent=2) + "\n")
