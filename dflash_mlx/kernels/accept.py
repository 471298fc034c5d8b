"""How many drafts of a block are right, and the tokens that the round emits."""

from __future__ import annotations

import mlx.core as mx

from .metal import MAX_ROWS, MORE_ROWS, Metal
from .race import Contest


def accept(choices: mx.array, block: mx.array, *, metal: Metal | None = None) -> mx.array:
    """The longest prefix of drafts that the target would have chosen, and its next choice.

    `choices` [L] int32 are the target's choices after each row of `block` [L] int32, which is the
    anchor and L - 1 drafts. Returns [L + 1] int32: the number of accepted drafts, the accepted
    drafts and the bonus token, and -1 in the places left over. One array, so that the host reads
    once a round (dflash.md, section 1).
    """
    rows = block.shape[0]
    if metal is None:
        return twin(choices, block)
    contest = Contest(
        "accept", lambda: [_kernel(choices, block, metal)], lambda: [twin(choices, block)]
    )
    if not metal.serves("accept", unsupported(rows), contest):
        return twin(choices, block)
    return _kernel(choices, block, metal)


def _kernel(choices: mx.array, block: mx.array, metal: Metal) -> mx.array:
    rows = block.shape[0]
    kernel = metal.kernel("accept", ["choices", "block"], ["result"])
    (result,) = kernel(
        inputs=[choices, block],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(rows + 1,)],
        output_dtypes=[mx.int32],
    )
    return result


def unsupported(rows: int) -> str | None:
    """Why the kernel cannot take a block of so many rows, or None if it can."""
    return None if 1 <= rows <= MAX_ROWS else MORE_ROWS


def twin(choices: mx.array, block: mx.array) -> mx.array:
    """`accept` in plain MLX."""
    right = (choices[:-1] == block[1:]).astype(mx.int32)
    accepted = mx.cumprod(right).sum(keepdims=True).astype(mx.int32)
    tokens = mx.where(mx.arange(block.shape[0]) <= accepted, choices, -1)
    return mx.concatenate([accepted, tokens])
