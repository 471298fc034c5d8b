"""A tiny target, tiny drafters for it, and conversations, for tests of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import llama

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.config import FULL, SLIDING
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.engine.blocks import FixedBlocks
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import decode
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.target.model import Target
from dflash_mlx.training.conversations import Conversation, conversation

VOCABULARY, HIDDEN, LAYERS, MASK = 96, 32, 4, 95
TAPS = (0, 2)
TARGET_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def tiny_target(taps: Sequence[int] = TAPS, seed: int = 0, tied: bool = True) -> Target:
    """A random Llama whose likeliest token changes from place to place."""
    config = {**TARGET_CONFIG, "tie_word_embeddings": tied}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    randomize(model, seed)
    return Target(model, config, taps)


def tiny_config(**changes: Any) -> DrafterConfig:
    """2 layers, 4 query heads on 2 key heads, block 8."""
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(10000.0),
        "block_size": 8,
        "mask_token_id": MASK,
        "target_layer_ids": TAPS,
        "layer_types": (FULL, FULL),
        "num_target_layers": LAYERS,
    }
    return DrafterConfig(**{**fields, **changes})


def sliding_config(is_causal: bool | None, window: int = 5) -> DrafterConfig:
    """A sliding and a full layer."""
    return tiny_config(
        layer_types=(SLIDING, FULL), sliding_window=window, is_causal=is_causal, num_layers=2
    )


def tiny_drafter(config: DrafterConfig | None = None, seed: int = 1) -> Drafter:
    """Random weights, large enough that every row and every key matters."""
    drafter = Drafter(config or tiny_config())
    randomize(drafter, seed)
    return drafter


def randomize(model: nn.Module, seed: int, scale: float = 1.4) -> None:
    """Seeded weights of unit gain, times `scale`."""
    keys = iter(mx.random.split(mx.random.key(seed), 200))

    def draw(array: mx.array) -> mx.array:
        noise = mx.random.normal(array.shape, key=next(keys))
        return 1 + 0.1 * noise if array.ndim == 1 else noise * scale / array.shape[-1] ** 0.5

    model.update(tree_map(draw, model.parameters()))
    mx.eval(model.parameters())


def talk(*lengths: int, seed: int = 0, temperature: float = 0.0) -> Conversation:
    """Turns of random tokens, of these lengths, the user's first: user, assistant, user, ..."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY - 2, sum(lengths))
    flags = [bool(turn % 2) for turn, length in enumerate(lengths) for _ in range(length)]
    return conversation(ids.tolist(), flags, temperature)


def answer_of(target: Target, prompt: Sequence[int], limit: int) -> list[int]:
    """What the target says after `prompt`, greedily, without a drafter."""
    return _decode(Context(target, None), prompt, limit, 1, None)[1]


def served(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    limit: int,
    rows: int = 8,
    stop: int | None = None,
    vocabulary: tuple[int, ...] | None = None,
) -> tuple[list[int], list[int]]:
    """Through the engine: the drafts accepted in each round, and the tokens."""
    head = target.head_rows(vocabulary) if vocabulary else None
    drafting = BlockDrafting(target, drafter, head)
    return _decode(Context(target, drafting), prompt, limit, rows, stop)


def _decode(
    context: Context, prompt: Sequence[int], limit: int, rows: int, stop: int | None
) -> tuple[list[int], list[int]]:
    def cut(tokens: list[int]) -> tuple[int, bool]:
        ends = stop in tokens
        return (tokens.index(stop) + 1 if stop is not None and ends else len(tokens)), ends

    context.prefill(prompt[:-1], rows > 1)
    steps = list(decode(context, prompt[-1], FixedBlocks(rows), limit, Chooser(Sampling()), cut))
    rounds = [step.accepted for step in steps if step.drafted]
    return rounds, [token for step in steps for token in step.tokens]
