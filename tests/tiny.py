"""Tiny seeded models, and drafters that follow a script, for tests of the engine.

A tiny target is built from mlx-lm's own classes with random weights; what it says is noise, but
every property of the engine (identity, caches, stops) holds for it as for a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import llama, qwen3

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import Step, decode
from dflash_mlx.engine.drafting import BlockDrafting, Drafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.target.model import Target

VOCABULARY = 192
HIDDEN = 64
LAYERS = 4
TAPS = (0, 2, 3)
MASK = 190


def tiny_target(family: str = "llama", seed: int = 0, tap_ids: Sequence[int] = TAPS) -> Target:
    """A random target of 4 layers, hidden size 64, 192 tokens; `family` is llama or qwen3."""
    arguments: dict[str, Any] = {
        "model_type": family,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": family == "llama",
    }
    module = {"llama": llama, "qwen3": qwen3}[family]
    model = module.Model(module.ModelArgs.from_dict(arguments))
    randomize(model, seed)
    return Target(model, arguments, tap_ids)


def tiny_drafter(seed: int = 1, block_size: int = 16, taps: Sequence[int] = TAPS) -> Drafter:
    """A random drafter of 2 layers for a tiny target."""
    config = DrafterConfig(
        hidden_size=HIDDEN,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        block_size=block_size,
        mask_token_id=MASK,
        target_layer_ids=tuple(taps),
        layer_types=("full_attention",) * 2,
        num_target_layers=LAYERS,
    )
    drafter = Drafter(config)
    randomize(drafter, seed)
    return drafter


def randomize(model: nn.Module, seed: int) -> None:
    """Seeded weights, large enough that the likeliest token changes from place to place."""
    key = mx.random.key(seed)

    def draw(array: mx.array) -> mx.array:
        nonlocal key
        key, now = mx.random.split(key)
        if array.ndim == 1:
            return 1 + 0.1 * mx.random.normal(array.shape, key=now)
        return mx.random.normal(array.shape, key=now) * 1.4 / array.shape[-1] ** 0.5

    model.update(tree_map(draw, model.parameters()))
    model.eval()
    mx.eval(model.parameters())


@dataclass
class Script:
    """A drafter that knows the answer and errs by plan: `accepts` drafts right, the next wrong.

    `accepts` repeats; `truth` is the whole plain output after the prompt. ZERO is `[0]`, ORACLE is
    a number no smaller than any block.
    """

    truth: Sequence[int]
    prompt_length: int
    accepts: Sequence[int]
    length: int = 0
    arrays: list[mx.array] = field(default_factory=list)
    rounds: int = 0

    def rewind(self, length: int) -> None:
        """Forget the context from `length` on."""
        assert 0 <= length <= self.length
        self.length = length

    def extend(self, taps: mx.array) -> None:
        """Count the context rows: they must keep step with the target's cache."""
        self.length += taps.shape[1]

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """The truth up to the planned error, then tokens that are not it."""
        assert self.length == len(history) - 1
        if rows == 1:
            return mx.zeros([0], mx.int32)
        right = self.accepts[self.rounds % len(self.accepts)]
        self.rounds += 1
        place = len(history) - self.prompt_length
        drafts = []
        for k in range(rows - 1):
            true = self.truth[place + k] if place + k < len(self.truth) else 0
            drafts.append(true if k < right else (true + 1) % VOCABULARY)
        return mx.array(drafts, mx.int32)


ORACLE = [10**6]
ZERO = [0]


def run(
    target: Target,
    prompt: Sequence[int],
    limit: int,
    *,
    drafting: Drafting | None = None,
    block_size: int = 1,
    sampling: Sampling | None = None,
    key: tuple[int, int] = (7, 7),
    context: Context | None = None,
) -> tuple[list[int], list[Step], Context]:
    """Decode `limit` tokens after `prompt`; the tokens, the steps and the context."""
    context = context or Context(target, drafting)
    draft = block_size > 1
    reused = context.reuse(prompt, draft)
    context.prefill(prompt[reused:-1], draft)
    chooser = Chooser(sampling or Sampling(), key)
    steps = list(
        decode(context, prompt[-1], block_size, limit, chooser, lambda t: (len(t), False))
    )
    return [token for step in steps for token in step.tokens], steps, context


def random_drafting(target: Target, seed: int = 1, block_size: int = 16) -> BlockDrafting:
    """A real tiny drafter at work on `target`: RANDOM."""
    return BlockDrafting(target, tiny_drafter(seed, block_size, target.tap_ids))
