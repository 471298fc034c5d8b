"""What a caller may ask of a generation: how tokens are chosen, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..errors import UsageError

if TYPE_CHECKING:
    import mlx.core as mx

Processor = Callable[[Sequence[int], "mx.array"], "mx.array"]
"""`(tokens so far, logits [V]) -> logits [V]`, called once for every token that is emitted."""


@dataclass(frozen=True)
class Sampling:
    """How one token is chosen from the target's logits.

    The order is mlx-lm's: bias and penalties on the logits; top-p, min-p and top-k on the
    untempered probabilities; then the temperature. Penalties look at the last `*_context_size`
    tokens, the prompt included.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, good, meaning in (
            ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
            ("repetition_context_size", self.repetition_context_size > 0, "1 or more"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "a finite number"),
            ("presence_context_size", self.presence_context_size > 0, "1 or more"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "a finite number"),
            ("frequency_context_size", self.frequency_context_size > 0, "1 or more"),
        ):
            if not good:
                raise UsageError(f"{name} must be {meaning}; it is {getattr(self, name)}.")
        if 0 < self.temperature < 1e-6:
            raise UsageError(f"temperature {self.temperature} is too little to divide by: use 0.")
        if any(math.isnan(bias) or bias == math.inf for bias in self.logit_bias.values()):
            raise UsageError("A logit_bias must be a number, or -inf to ban its token.")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def cuts_tail(self) -> bool:
        """Whether tokens go by their probability: by top-p or min-p."""
        return self.top_p < 1 or self.min_p > 0

    @property
    def penalizes(self) -> bool:
        """Whether a bias or a penalty moves single tokens' logits."""
        penalties = (self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or self.repetition_penalty != 1 or any(penalties)


@dataclass(frozen=True)
class Options:
    """One generation: sampling, limits, and whether and how far to draft.

    `max_tokens` None means as far as the context reaches. `block_size` counts the anchor: 8 rows
    are 7 drafts; None is the drafter's own, "auto" what is fastest round by round, and 1 or
    `draft=False` is plain decoding. `copy` lets "auto" take drafts from the context: True also
    where no drafter drafts, None only beside one.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    block_size: int | Literal["auto"] | None = None
    draft: bool = True
    copy: bool | None = None
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be 1 or more; it is {self.max_tokens}.")
        if self.block_size not in (None, "auto") and (
            not isinstance(self.block_size, int) or self.block_size < 1
        ):
            raise UsageError(f'block_size must be 1 or more, or "auto"; it is {self.block_size}.')
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"seed must be from 0 to 2^64 - 1; it is {self.seed}.")
        if any(not text for text in self.stop):
            raise UsageError("A stop string must not be empty.")
