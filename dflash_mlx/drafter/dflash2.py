"""DFlash 2: convolutions around attention and MLP, and drafts that know one another.

The rows of a DFlash block are guessed independently. DFlash 2 (Inco AI, August 2026) lets
neighbouring rows mix by short causal convolutions, and walks through each row's best candidates
so that a draft follows the one before it.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from ..kernels.dynamic_convolution import dynamic_convolution
from .config import DrafterConfig, SecondConfig
from .model import ContextRows, Drafter, DrafterLayer
from .rope import Position, Rope

Pick = Callable[[int, mx.array, mx.array], mx.array]
"""`(row, token ids [1, K], scores [1, K]) -> token id [1]`: the choice among candidates, lazy."""


class DynamicConvolution(nn.Module):
    """Two filters, one before and one after a sublayer, computed from the sublayer's input."""

    def __init__(self, hidden_size: int, second: SecondConfig):
        super().__init__()
        groups = hidden_size // second.group_size
        self.kernel_size = second.kernel_size
        self.base_kernel = mx.zeros((2, second.kernel_size, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * second.kernel_size * groups, bias=False)

    def around(self, sublayer: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        """`sublayer` with the first filter before it and the second after it: `[B, L, D]`."""
        filters = self.kernel_projection(x).reshape(*x.shape[:2], 2, self.kernel_size, -1)
        x = dynamic_convolution(x, self.base_kernel[0], filters[:, :, 0])
        return dynamic_convolution(sublayer(x), self.base_kernel[1], filters[:, :, 1])


class SecondLayer(DrafterLayer):
    """A drafter's layer with a convolution around attention and one around the MLP."""

    def __init__(self, config: DrafterConfig, layer: int, second: SecondConfig):
        super().__init__(config, layer)
        self.attention_conv = DynamicConvolution(config.hidden_size, second)
        self.mlp_conv = DynamicConvolution(config.hidden_size, second)

    def __call__(self, h: mx.array, rope: Rope, cache: ContextRows, position: Position) -> mx.array:
        def attend(x: mx.array) -> mx.array:
            return self.self_attn(x, rope, cache, position)

        h = h + self.attention_conv.around(attend, self.input_layernorm(h))
        return h + self.mlp_conv.around(self.mlp, self.post_attention_layernorm(h))


class CandidateSelector(nn.Module):
    """Scores of a token after another, low-rank and seen through the row's hidden state."""

    def __init__(self, config: DrafterConfig, second: SecondConfig):
        super().__init__()
        self.top_k = second.top_k
        self.predecessor_codebook = mx.zeros((config.vocab_size, second.rank))
        self.successor_codebook = mx.zeros((config.vocab_size, second.rank))
        self.hidden_projection = nn.Linear(config.hidden_size, second.rank, bias=False)

    def walk(self, hidden: mx.array, anchor: int, logits: mx.array, pick: Pick) -> mx.array:
        """`n` drafts, int32 and lazy: nothing inside the walk is read by the host.

        hidden `[n, D]` and logits `[n, V]` are those of rows 1 to n of the block behind `anchor`.
        A candidate b of row t, one of its `top_k` largest logits U, scores
        `U_t(b) + <A[previous] * (P h_t), B[b]>`, in float32; `pick` chooses among them.
        """
        logits = logits[:, : self.successor_codebook.shape[0]]  # a head may have rows to spare
        ids = mx.argpartition(-logits, kth=self.top_k - 1, axis=-1)[:, : self.top_k]
        own = mx.take_along_axis(logits, ids, axis=-1).astype(mx.float32)
        return self.walk_among(hidden, anchor, ids, own, pick)

    def walk_among(
        self, hidden: mx.array, anchor: int, ids: mx.array, own: mx.array, pick: Pick
    ) -> mx.array:
        """As `walk`, where each row's best tokens `ids` [n, K] are known, and their logits."""
        wanted = self.successor_codebook[ids] * self.hidden_projection(hidden)[:, None]
        previous, drafts = mx.array([anchor]), []
        for row in range(ids.shape[0]):
            follows = self.predecessor_codebook[previous] @ wanted[row].T
            previous = pick(row, ids[row][None], own[row] + follows.astype(mx.float32))
            drafts.append(previous.astype(mx.int32))
        return mx.concatenate(drafts)


class SecondDrafter(Drafter):
    """A DFlash 2 drafter: its rows are drafted by walking, through `candidate_selector`."""

    def __init__(self, config: DrafterConfig):
        super().__init__(config)
        assert config.second is not None
        self.layers = [
            SecondLayer(config, layer, config.second) for layer in range(config.num_layers)
        ]
        self.candidate_selector = CandidateSelector(config, config.second)
