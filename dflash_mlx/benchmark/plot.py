"""The same figures as a picture, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import DFlashError


def check_plot(path: Path) -> None:
    """Raise DFlashError, before anything is measured, where no picture could be made."""
    if find_spec("matplotlib") is None:
        raise DFlashError("--plot needs matplotlib: `python -m pip install matplotlib`.")
    if not path.parent.is_dir():
        raise DFlashError(f"--plot: there is no folder {path.parent}.")


def write_plot(path: Path, report: Mapping[str, Any]) -> None:
    """Draw the gain of each arm on each stratum, with its interval, and the drafts' acceptance."""
    from matplotlib.figure import Figure

    strata = report["strata"]
    figure = Figure(figsize=(4 + 1.2 * len(strata), 7), layout="constrained")
    above, below = figure.subplots(2, 1)
    arms = list(dict.fromkeys(arm for stratum in strata.values() for arm in stratum["arms"]))
    arms = [arm for arm in arms if arm != report["compared_with"]]
    width = 0.8 / max(1, len(arms))
    for number, arm in enumerate(arms):
        known = [
            (place + (number - (len(arms) - 1) / 2) * width, stratum["arms"][arm])
            for place, stratum in enumerate(strata.values())
            if stratum["arms"].get(arm, {}).get("speedup") is not None
        ]
        gains = [figures["speedup"] for _, figures in known]
        above.bar([x for x, _ in known], gains, width, label=arm, yerr=_whiskers(known))
    above.axhline(1, color="black", linewidth=0.8)
    above.set_xticks(range(len(strata)), list(strata), rotation=20, ha="right")
    above.set_ylabel(f"times {report['compared_with']}, decoding")
    if arms:
        above.legend(fontsize="small")
    for name, stratum in strata.items():
        curves = [f["per_position"] for f in stratum["arms"].values() if f["per_position"]]
        if curves:
            curve = max(curves, key=len)
            below.plot(range(1, len(curve) + 1), curve, marker=".", label=name)
    below.set_xlabel("place in the block (the arm that drafts furthest)")
    below.set_ylabel("share of rounds accepting so far")
    if below.lines:
        below.legend(fontsize="small")
    figure.savefig(path, dpi=120, format="png")


def _whiskers(known: list[tuple[float, Mapping[str, Any]]]) -> list[list[float]]:
    """How far each interval reaches below and above its median."""
    both = []
    for _, figures in known:
        middle, (low, high) = figures["speedup"], figures["speedup_interval"]
        both.append((0.0, 0.0) if low is None else (middle - low, high - middle))
    return [[low for low, _ in both], [high for _, high in both]]
