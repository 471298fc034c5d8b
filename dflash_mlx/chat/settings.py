"""Defaults of the chat from config.toml: one key a flag, by the flag's name."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import UsageError
from ..hub.store import home


def config_file() -> Path:
    """Where a person keeps defaults."""
    return home() / ".config" / "dflash-mlx" / "config.toml"


def read_defaults(path: Path, arguments: type) -> dict[str, Any]:
    """The values in a file, by the field names of the dataclass `arguments`; none without a file.

    `max-tokens = 100` stands for `--max-tokens 100`. Raises UsageError for a key that is no flag,
    or a value of the wrong kind.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    hints = get_type_hints(arguments)
    defaults = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in hints:
            close = difflib.get_close_matches(name, hints, 1)
            hint = f": did you mean {close[0].replace('_', '-')}?" if close else "."
            raise UsageError(f"{path}: there is no setting {key}{hint}")
        if not any(_fits(value, kind) for kind in _kinds(hints[name])):
            raise UsageError(f"{path}: {key} cannot be {value!r}.")
        defaults[name] = value
    return defaults


def _kinds(hint: Any) -> list[Any]:
    """The types that a field may have, besides being left out."""
    return [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return str(value) in get_args(kind)
    if kind is Path:
        return isinstance(value, str)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind
