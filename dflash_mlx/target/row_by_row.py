"""State-space layers (Mamba-2) over a block, one row at a time.

mlx-lm has two forms of this recurrence: over several rows it multiplies matrices, whose sums are of
another order than those of a single row's step, which plain decoding takes. A block is short, so it
takes the step for each of its rows: then its bits are those of plain decoding, and on a GPU the
same kernel runs. Prefill keeps the matrices.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .watch import instances_of

_METHOD = "_ssm"
"""How mlx-lm's mixers name the recurrence: `(hidden, B, C, dt, cache, mask)`, rows on axis 1."""


class RowByRow:
    """The mixers among `modules`, each of a subclass of its own class while this is on."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._mixers = [(m, _stepping(type(m))) for m in modules if hasattr(m, _METHOD)]

    def on(self) -> AbstractContextManager[None]:
        """Take steps."""
        return instances_of(self._mixers)


def _stepping(plain: Any) -> type[Any]:
    class Stepping(plain):
        def _ssm(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            step = super()._ssm
            steps = [
                step(
                    hidden[:, row : row + 1],
                    *(_row(value, row) for value in args),
                    **{name: _row(value, row) for name, value in kwargs.items()},
                )
                for row in range(hidden.shape[1])
            ]
            return mx.concatenate(steps, axis=1)

    Stepping.__name__ = plain.__name__
    return Stepping


def _row(value: Any, row: int) -> Any:
    return value[:, row : row + 1] if isinstance(value, mx.array) else value
