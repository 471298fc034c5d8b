"""Recurrent layers over the first rows of a block once more.

A recurrence has only its newest state. To keep n of a block's L rows, the state before the block is
restored and the layer runs again over those n rows, from the input that it had. Its projections are
not computed anew, they repeat what they gave: no weight is read but the recurrence's own. And what
the caches do not depend on (the layer's output, its MLP) is never computed, since MLX is lazy. It
is the layer's own code on the same inputs, so the state has the bits of a pass over n rows.

Layers that our ops serve have noted what their recurrence took in, and need not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .row_by_row import RowByRow
from .watch import Notes, Recall

_PROJECTIONS = "in_proj"
"""How mlx-lm names what the recurrences take in; others are computed again."""


def projections(layer: nn.Module) -> dict[str, nn.Module]:
    """The input projections of a recurrent layer, by their paths."""
    return {
        path: module
        for path, module in layer.named_modules()
        if path.split(".")[-1].startswith(_PROJECTIONS)
    }


class Replay:
    """The recurrent layers of a model; `inputs` maps (index, path) to their projections."""

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        inputs: Mapping[tuple[int, str], nn.Module],
        row_by_row: RowByRow,
    ) -> None:
        self._layers = layers
        self._recall = Recall(inputs)
        self._row_by_row = row_by_row

    def run(self, notes: Notes, entries: Sequence[Any], rows: int) -> None:
        """Bring `entries`, restored caches, behind the first `rows` rows of the noted pass."""
        served = {id(entry): notes[id(entry)] for entry in entries if id(entry) in notes}
        for taken in served.values():
            taken.keep(rows)
        entries = [entry for entry in entries if id(entry) not in served]
        with self._recall.from_notes(notes), self._row_by_row.on():
            for index, layer in self._layers.items():
                call = notes[index]
                if call.given(entries):
                    whole = call.out.shape[1]
                    layer(
                        *(_first(value, whole, rows) for value in call.args),
                        **{name: _first(value, whole, rows) for name, value in call.kwargs.items()},
                    )


def _first(value: Any, whole: int, rows: int) -> Any:
    """Of an argument that speaks of `whole` rows, what speaks of the first `rows`."""
    if not isinstance(value, mx.array):
        return value
    if value.dtype == mx.bool_:  # a mask [..., L, K], whose last L keys are the rows themselves
        return value[..., :rows, : value.shape[-1] - whole + rows] if value.ndim > 1 else value
    return value[:, :rows] if value.ndim == 3 and value.shape[1] == whole else value
