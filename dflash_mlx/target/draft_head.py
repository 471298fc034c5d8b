"""The LM head over a draft vocabulary: only the rows that drafts may come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from ..kernels.block_matmul import Weights
from ..kernels.products import HEAD_FROM, by_columns, times_columns

Rows = Callable[[mx.array], mx.array]
_FLOAT, _QUANTIZED = (nn.Linear, nn.Embedding), (nn.QuantizedLinear, nn.QuantizedEmbedding)


class DraftHead:
    """`rows` give the logits of the tokens `ids` [N] alone.

    `size` is the length V of a row of the whole head's logits; `weights` are those of `rows` where
    it is a bare matrix, for kernels.
    """

    def __init__(
        self, rows: Rows, ids: Sequence[int], size: int, weights: Weights | None = None
    ) -> None:
        self.ids = mx.array(list(ids), mx.int32)
        self.weights = weights
        self.size = size
        self._rows = rows

    @classmethod
    def of(
        cls, head: nn.Module, whole: Rows, ids: Sequence[int], size: int, columns: bool = False
    ) -> DraftHead:
        """A copy of the rows `ids` of a target's head, to be made once a pair.

        With `columns` a float matrix is stored as OpenBLAS reads it fastest (`kernels.fused`).
        """
        rows, weights = _rows(head, whole, mx.array(list(ids), mx.int32), columns)
        return cls(rows, ids, size, weights)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., N] of final hidden rows [..., D]."""
        return self._rows(hidden)

    def spread(self, logits: mx.array) -> mx.array:
        """Logits [L, N] at their tokens' places in [L, V]; no other token is possible."""
        nowhere = mx.full((logits.shape[0], self.size), -mx.inf, logits.dtype)
        return mx.put_along_axis(nowhere, mx.broadcast_to(self.ids, logits.shape), logits, axis=-1)


def bare_weights(head: nn.Module) -> Weights | None:
    """The matrix of a linear layer or an embedding table that adds nothing to its product."""
    return None if "bias" in head else Weights.of(head)


def _rows(
    head: nn.Module, whole: Rows, ids: mx.array, columns: bool
) -> tuple[Rows, Weights | None]:
    """The rows `ids` of `head`, a linear layer or (tied) an embedding table, quantized or not.

    Of a head of any other kind, the whole is computed and its rows are picked.
    """
    names = [name for name in ("weight", "bias", "scales", "biases") if name in head]
    if type(head) not in (*_FLOAT, *_QUANTIZED):
        return lambda hidden: whole(hidden)[..., ids], None
    parts = {name: head[name][ids] for name in names if head[name] is not None}
    if columns and type(head) in _FLOAT:
        parts["weight"] = by_columns(parts["weight"])
    mx.eval(parts)
    weights = bare_weights(head)
    if weights is not None:
        arrays = (parts["weight"], parts.get("scales"), parts.get("biases"))
        weights = Weights(*arrays, weights.group_size, weights.bits)

    def rows(hidden: mx.array) -> mx.array:
        if type(head) in _FLOAT:
            table = parts["weight"].T
            logits = times_columns(hidden, table, HEAD_FROM) if columns else hidden @ table
        else:
            logits = mx.quantized_matmul(
                hidden,
                parts["weight"],
                scales=parts["scales"],
                biases=parts.get("biases"),
                transpose=True,
                group_size=head.group_size,
                bits=head.bits,
                mode=head.mode,
            )
        return logits + parts["bias"] if "bias" in parts else logits

    return rows, weights
