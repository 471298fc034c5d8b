"""Flags made of the settings of a stage: one each, with the same name and the same help."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from typer import Option

from ...errors import UsageError
from ...training.settings import Stage

_NUMBERS: dict[Any, type[int] | type[float]] = {list[int]: int, list[float]: float}
"""What the numbers of a list are, whose flag has commas between them."""


def flags_of(settings: type[Stage]) -> list[inspect.Parameter]:
    """A keyword parameter for each setting; None where the flag is left out."""
    flags = []
    for name, (kind, about) in settings.known().items():
        default = getattr(settings, name)
        tail = "" if default is None or "(default" in about.text else f" (default: {default})"
        names = [f"--{name.replace('_', '-')}", about.alias] if about.alias else []
        option = Option(*names, help=about.text + tail, metavar=_metavar(kind), show_default=False)
        flags.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_flag_type(kind), option],
            )
        )
    return flags


def _wanted(kind: Any) -> Any:
    """The type of a setting without None."""
    options = [option for option in get_args(kind) if option is not type(None)]
    return options[0] if type(None) in get_args(kind) else kind


def _flag_type(kind: Any) -> Any:
    """What Typer reads: several numbers come as "1,8,14", choices of numbers as a number."""
    wanted = _wanted(kind)
    if wanted in _NUMBERS:
        wanted = str
    elif get_origin(wanted) is Literal and not isinstance(get_args(wanted)[0], str):
        wanted = int
    return wanted | None


def _metavar(kind: Any) -> str | None:
    wanted = _wanted(kind)
    names = {int: "N", float: "X", str: "TEXT", Path: "PATH", list[Path]: "PATH"}
    return {**names, list[int]: "N,N,...", list[float]: "X,X,..."}.get(wanted)


def parsed(settings: type[Stage], given: dict[str, Any]) -> dict[str, Any]:
    """Flags as settings have them: lists of numbers are no text any more. Raises UsageError."""
    settled: dict[str, Any] = {}
    for name, value in given.items():
        kind, _ = settings.known()[name]
        if value == []:
            continue
        if number := _NUMBERS.get(_wanted(kind)):
            try:
                value = [number(part) for part in value.split(",")]
            except ValueError:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} takes numbers such as 1,8,14; it is {value}.") from None
        settled[name] = value
    return settled
