"""A run's curves: a line of blocks in the terminal, a picture where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` as a line of at most `width` bars, each the mean of its stretch."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def curves(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of bars: the loss, and the walked acceptance of each side that was walked."""
    known = {"loss": [r["loss"] for r in records if r["kind"] == "step"]}
    for side, name in (("train", "train"), ("heldout", "held out")):
        walked = [r[side] for r in records if r["kind"] == "eval" and r[side]]
        known[f"acceptance length, {name}"] = [side["acceptance_length"] for side in walked]
    return [
        f"{name} {sparkline(values)} {values[0]:.2f} to {values[-1]:.2f}"
        for name, values in known.items()
        if values
    ]


def write_plot(path: Path, records: Sequence[Mapping[str, Any]]) -> bool:
    """Draw loss and acceptance over the steps into a PNG; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    steps = [record for record in records if record["kind"] == "step"]
    evals = [record for record in records if record["kind"] == "eval"]
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot([r["step"] for r in steps], [r["loss"] for r in steps], linewidth=0.8)
    above.set_ylabel("loss (nats a token)")
    for side in ("train", "heldout"):
        known = [r for r in evals if r.get(side)]
        below.plot(
            [r["step"] for r in known], [r[side]["acceptance_length"] for r in known], label=side
        )
    below.set_ylabel("acceptance length, walked")
    below.set_xlabel("step")
    if evals:
        below.legend()
    figure.savefig(path, dpi=120)
    return True
