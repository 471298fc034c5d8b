"""Tiny seeded models, and drafters that follow a script, for tests of the engine.

A tiny target is built from mlx-lm's own classes with random weights; what it says is noise, but
every property of the engine (identity, caches, stops) holds for it as for a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import llama, qwen3

from dflash_mlx.drafter import Drafter, DrafterConfig
from dflash_mlx.drafter.cache import DrafterCache
from dflash_mlx.drafter.rope import RopeConfig
from dflash_mlx.engine.blocks import Blocks, FixedBlocks, Plan
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import Step, decode
from dflash_mlx.engine.drafting import BlockDrafting, Drafting
from dflash_mlx.engine.options import Processor, Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.target.model import Target

VOCABULARY = 128
HIDDEN = 32
LAYERS = 2
TAPS = (0, 1)
MASK = 127
KEY = (7, 7)

ORACLE = (10**6,)
ZERO = (0,)
MIXED = (0, 1, 15, 3, 0, 2, 7)
"""How many drafts are right, round by round: none, some and all of any block."""


@cache
def tiny_target(family: str = "llama", tap_ids: tuple[int, ...] = TAPS) -> Target:
    """A random target of 2 layers, hidden size 32, 128 tokens; `family` is llama or qwen3."""
    arguments: dict[str, Any] = {
        "model_type": family,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": family == "llama",
    }
    module = {"llama": llama, "qwen3": qwen3}[family]
    model = module.Model(module.ModelArgs.from_dict(arguments))
    randomize(model, seed=0)
    return Target(model, arguments, tap_ids)


@cache
def tiny_drafter(block_size: int = 16, window: int | None = None) -> Drafter:
    """A random drafter of 2 layers for a tiny target; with a `window`, both layers slide."""
    config = DrafterConfig(
        hidden_size=HIDDEN,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=48,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        block_size=block_size,
        mask_token_id=MASK,
        target_layer_ids=TAPS,
        layer_types=("sliding_attention" if window else "full_attention",) * 2,
        num_target_layers=LAYERS,
        sliding_window=window,
    )
    drafter = Drafter(config)
    randomize(drafter, seed=1)
    return drafter


class Passes(Drafter):
    """The tiny drafter, which notes how many rows of taps each pass of theirs has."""

    def __init__(self) -> None:
        super().__init__(tiny_drafter().config)
        self.update(tiny_drafter().parameters())
        self.rows: list[int] = []

    def extend(self, taps: mx.array, cache: DrafterCache) -> None:
        """Count the rows."""
        self.rows.append(taps.shape[1])
        super().extend(taps, cache)


def random_drafting(target: Target, window: int | None = None) -> BlockDrafting:
    """A real tiny drafter at work on `target`: RANDOM."""
    return BlockDrafting(target, tiny_drafter(window=window))


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


def repeating(
    target: Target, prompt: Sequence[int], words: Sequence[int], length: int
) -> tuple[Sampling, list[int]]:
    """A sampling under which the target says nothing but `words`, and what it says plainly."""
    sampling = Sampling(temperature=20.0, logit_bias=dict.fromkeys(words, 3000.0))
    said, _, _ = run(target, prompt, length, sampling=sampling)
    assert set(said) == set(words)
    return sampling, said


class Rows:
    """A drafter's context that only counts its rows, and never drafts."""

    def __init__(self) -> None:
        self.length = 0
        self.arrays: list[mx.array] = []
        self.rewinds_freely = True

    def reaches(self, length: int) -> bool:
        """Any earlier length."""
        return 0 <= length <= self.length

    def save(self) -> object:
        """The length."""
        return self.length

    def restore(self, saved: object) -> None:
        """As long as it was."""
        assert isinstance(saved, int)
        self.length = saved

    def rewind(self, length: int) -> None:
        """Forget the context from `length` on."""
        assert 0 <= length <= self.length
        self.length = length

    def extend(self, taps: mx.array) -> None:
        """Count the context rows."""
        self.length += taps.shape[1]

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """Nothing."""
        return mx.zeros([0], mx.int32)


class Script:
    """A drafter that knows the answer and errs by plan: `accepts` drafts right, the next wrong.

    `accepts` repeats; `truth` is the whole plain output after the prompt. `keeper` is a real
    drafter, which then keeps its context and does its passes as ever, but is not listened to.
    """

    def __init__(
        self,
        truth: Sequence[int],
        prompt_length: int,
        accepts: Sequence[int],
        keeper: Drafting | None = None,
    ) -> None:
        self.truth = truth
        self.prompt_length = prompt_length
        self.accepts = accepts
        self.keeper: Drafting = keeper or Rows()
        self.rounds = 0

    @property
    def length(self) -> int:
        """How many tokens its context stands for."""
        return self.keeper.length

    @property
    def arrays(self) -> list[mx.array]:
        """What the keeper wants evaluated."""
        return self.keeper.arrays

    def rewind(self, length: int) -> None:
        """Forget the context from `length` on."""
        self.keeper.rewind(length)

    @property
    def rewinds_freely(self) -> bool:
        """As the keeper does."""
        return self.keeper.rewinds_freely

    def reaches(self, length: int) -> bool:
        """What the keeper reaches."""
        return self.keeper.reaches(length)

    def save(self) -> object:
        """What the keeper saves."""
        return self.keeper.save()

    def restore(self, saved: object) -> None:
        """As the keeper was."""
        self.keeper.restore(saved)

    def extend(self, taps: mx.array) -> None:
        """Append context rows."""
        self.keeper.extend(taps)

    def propose(self, history: Sequence[int], rows: int, chooser: Chooser) -> mx.array:
        """The truth up to the planned error, then tokens that are not it."""
        assert self.length == len(history) - 1, "the context must end before the anchor"
        self.keeper.propose(history, rows, chooser)
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


class LongCopies:
    """Copies of 16 rows wherever there can be one, else the drafter's block of 4, or one row."""

    copies = True

    def __init__(self, *, drafts: bool) -> None:
        self.drafts = drafts

    def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
        """So many rows, or as many as are wanted."""
        return Plan(min(16 if match else 4 if self.drafts else 1, wanted), match)

    def observe(self, plan: Plan, accepted: int) -> None:
        """Learns nothing."""


def run(
    target: Target,
    prompt: Sequence[int],
    limit: int,
    *,
    drafting: Drafting | None = None,
    block_size: int = 1,
    blocks: Blocks | None = None,
    sampling: Sampling | None = None,
    processors: Sequence[Processor] = (),
    context: Context | None = None,
) -> tuple[list[int], list[Step], Context]:
    """Decode `limit` tokens after `prompt`; the tokens, the steps and the context.

    In blocks of `block_size` rows, or as `blocks` plans.
    """
    context = context or Context(target, drafting)
    blocks = blocks or FixedBlocks(block_size)
    reused = context.reuse(prompt, blocks.drafts)
    context.prefill(prompt[reused:-1], blocks.drafts)
    chooser = Chooser(sampling or Sampling(), KEY, tuple(processors))
    steps = list(decode(context, prompt[-1], blocks, limit, chooser, take_all))
    return [token for step in steps for token in step.tokens], steps, context


def take_all(tokens: list[int]) -> tuple[int, bool]:
    """A `cut` that never stops."""
    return len(tokens), False


def cached_rows(context: Context) -> list[mx.array]:
    """Keys and values that the target's cache holds, up to its length, layer by layer."""
    return [
        array[..., : entry.offset, :]
        for entry in context.cache
        for array in (entry.keys, entry.values)
    ]


def drafter_rows(drafting: BlockDrafting) -> list[mx.array]:
    """Keys and values that the drafter's cache holds, as far as its next block sees them."""
    cache = drafting.context()
    return [array for layer in cache.layers for array in layer.rows(cache.length)]


def same_bits(ours: Sequence[mx.array], theirs: Sequence[mx.array]) -> bool:
    """Whether two lists of arrays are equal in every bit."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and mx.array_equal(a, b).item()
        for a, b in zip(ours, theirs, strict=True)
    )
