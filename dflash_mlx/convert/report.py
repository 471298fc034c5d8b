"""What a conversion did, or would do, as lines for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SHOWN = 6
"""Kept layers that are named one by one, of each reason."""


@dataclass
class Report:
    """Sizes are in bytes, bits per weight true: with scales and what was kept."""

    kind: str
    tensors: tuple[int, int]
    nbytes: tuple[int, int]
    bits_per_weight: float | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def lines(self) -> Iterator[str]:
        """The table, a fact a line."""
        yield f"{'model':12}{self.kind}"
        yield f"{'tensors':12}{self.tensors[0]:,} -> {self.tensors[1]:,}"
        yield f"{'size':12}{_size(self.nbytes[0])} -> {_size(self.nbytes[1])}"
        if self.bits_per_weight is not None:
            yield f"{'per weight':12}{self.bits_per_weight:.2f} bits"
        for values, count in self.layers.items():
            yield f"{'quantized':12}{count_layers(count)} to {values}"
        for reason, count in Counter(self.kept.values()).items():
            paths = [path for path, why in self.kept.items() if why == reason]
            more = ", ..." if count > SHOWN else ""
            yield f"{'kept':12}{count_layers(count)} ({reason}): {', '.join(paths[:SHOWN])}{more}"
        for note in self.notes:
            yield f"{'note':12}{note}"


def count_layers(count: int) -> str:
    """ "1 layer", "2 layers"."""
    return f"{count} layer{'s' if count != 1 else ''}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"
