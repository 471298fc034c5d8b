"""The drafter's pass over all blocks of a batch at once, by the very modules that serve.

Only the context differs: where a cache holds the rows before one block, here whole sequences lie
open, and a block sees of them what stands before its anchor, by position. Blocks never meet:
each has attention over its own rows, computed apart.
"""

from __future__ import annotations

import mlx.core as mx

from ..drafter.model import Drafter
from ..kernels.block_attention import visible


class OpenContext:
    """Keys and values `[B, H_kv, S, d]` of whole sequences, for the blocks at `A` anchors each.

    What `DrafterLayer` takes for its cache when training: its rows are those of `B * A` blocks.
    """

    def __init__(self, keys: mx.array, values: mx.array):
        self.keys = keys
        self.values = values

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        position: mx.array,
        *,
        scale: float,
        window: int | None,
        causal: bool,
    ) -> mx.array:
        """Attention of `B * A` blocks `[B*A, H, L, d]` at `position` [B*A] over context and itself.

        One matrix product does the context of all blocks of a sequence, masked by position;
        another the blocks' own rows. One softmax, in float32, joins them.
        """
        blocks, heads, rows, dims = queries.shape
        batch, groups = self.keys.shape[:2]
        count, shared = blocks // batch, heads // groups
        queries = (queries * scale).reshape(batch, count, groups, shared * rows, dims)
        keys, values = (x.reshape(batch, count, groups, rows, dims) for x in (keys, values))
        along = queries.swapaxes(1, 2).reshape(batch, groups, -1, dims)
        before = (along @ self.keys.swapaxes(2, 3)).reshape(batch, groups, count, shared, rows, -1)
        inside = (queries @ keys.swapaxes(3, 4)).swapaxes(1, 2)
        seen = visible_context(position.reshape(batch, count), rows, self.keys.shape[2], window)
        before = mx.where(seen[:, None, :, None], before, -mx.inf).flatten(3, 4)
        if (own := visible(rows, 0, window, causal)) is not None:
            inside = inside.reshape(*inside.shape[:3], shared, rows, rows)
            inside = mx.where(own, inside, -mx.inf).flatten(3, 4)
        weights = mx.softmax(mx.concatenate([before, inside], -1).astype(mx.float32), axis=-1)
        weights = weights.astype(values.dtype)
        length = self.keys.shape[2]
        mixed = (weights[..., :length].reshape(batch, groups, -1, length) @ self.values).reshape(
            batch, groups, count, shared * rows, dims
        )
        mixed = mixed + weights[..., length:] @ values.swapaxes(1, 2)
        return mixed.swapaxes(1, 2).reshape(blocks, heads, rows, dims)


def visible_context(anchors: mx.array, rows: int, length: int, window: int | None) -> mx.array:
    """Which of `length` context rows a block's rows see: bool `[B, A, L or 1, length]`.

    Those before the anchor, by position, and within the window: q_pos - k_pos < window.
    """
    context = mx.arange(length)
    before: mx.array = context < anchors[:, :, None, None]
    if window is None:
        return before
    queries = anchors[:, :, None, None] + mx.arange(rows)[:, None]
    return before & (queries - context < window)


def hidden_states(
    drafter: Drafter, taps: mx.array, embeddings: mx.array, anchors: mx.array
) -> mx.array:
    """The final hidden rows of all blocks: `[B, A, L, D]`, of which row k predicts anchor + k.

    taps `[B, S, T*D]`: the target's features of whole sequences. embeddings `[B, A, L, D]`: the
    blocks (anchor, masks) through the target's embedding, scaled. anchors `[B, A]`: their places.
    """
    batch, count, rows, width = embeddings.shape
    context = drafter.hidden_norm(drafter.fc(taps.astype(drafter.dtype)))
    positions = anchors.flatten()
    h = embeddings.astype(drafter.dtype).reshape(batch * count, rows, width)
    for layer in drafter.layers:
        keys, values = layer.self_attn.keys_and_values(context, drafter.rope, 0)
        h = layer(h, drafter.rope, OpenContext(keys, values), positions)
    return drafter.norm(h).reshape(batch, count, rows, width)
