"""What was measured, as tables for people: one a stratum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_COLUMNS = (
    "tokens/s",
    "times plain (95 %)",
    "with prefill (95 %)",
    "prefill",
    "acceptance",
    "same tokens",
    "loops",
)


def table(name: str, stratum: Mapping[str, Any], compared_with: str) -> Table:
    """The arms of one stratum, each with its medians."""
    made = Table(title=f"{name} ({_sampling(stratum['sampling'])}, {stratum['prompts']} prompts)")
    made.title_justify = "left"
    made.add_column("arm", no_wrap=True)
    for column in _COLUMNS:
        made.add_column(column.replace("plain", compared_with), justify="right", no_wrap=True)
    for arm, figures in stratum["arms"].items():
        made.add_row(arm, *cells(figures, is_first=arm == compared_with))
    return made


def cells(figures: Mapping[str, Any], *, is_first: bool) -> list[str]:
    """The cells of one arm; a dash stands for a figure that does not exist."""
    identity = figures["identity"]
    return [
        _number(figures["tokens_per_second"]),
        "1" if is_first else _ratio(figures["speedup"], figures["speedup_interval"]),
        "1"
        if is_first
        else _ratio(figures["speedup_with_prefill"], figures["speedup_with_prefill_interval"]),
        f"{figures['prefill_seconds']:.2f} s",
        _number(figures["acceptance_length"]),
        "-" if is_first or identity is None else f"{identity['same']} of {identity['compared']}",
        f"{figures['looped_answers']} of {figures['answers']}",
    ]


def warm_up_line(warm_up: Mapping[str, Mapping[str, Any]]) -> str:
    """The first answers, which count for nothing."""
    first = [f"{arm} {_number(times['tokens_per_second'])}" for arm, times in warm_up.items()]
    return f"Warm-up, tokens/s, not counted: {', '.join(first)}"


def against_lines(strata: Mapping[str, Any]) -> list[str]:
    """One line for each other program and stratum: how many times its speed our arms have."""
    return [
        f"{name}, times {other}: "
        + ", ".join(f"{ours} {_ratio(gain[0], gain[1:])}" for ours, gain in gains.items())
        for name, stratum in strata.items()
        for other, gains in stratum["against"].items()
    ]


def differences(strata: Mapping[str, Any]) -> list[str]:
    """One line for each first difference from plain decoding."""
    return [
        f"{name}, {arm}: {difference['words']}"
        for name, stratum in strata.items()
        for arm, figures in stratum["arms"].items()
        if figures["identity"] and (difference := figures["identity"]["first_difference"])
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(value: float | None, interval: list[float | None] | None) -> str:
    if value is None:
        return "-"
    if not interval or interval[0] is None:
        return f"{value:.2f}"
    return f"{value:.2f} ({interval[0]:.2f}-{interval[1]:.2f})"


def _sampling(sampling: Mapping[str, Any] | str) -> str:
    if isinstance(sampling, str):
        return sampling
    return f"temperature {sampling['temperature']:g}" if sampling["temperature"] else "greedy"
