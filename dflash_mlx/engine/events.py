"""What a generation reports: one event a round, and the statistics that go with it.

The definitions, used everywhere:

* a **round** is one verification pass over drafts; plain decoding has none, and the token that
  prefill yields belongs to none, nor does a last one for which nothing was drafted;
* **accepted** is the number of drafts that a round kept; drafts beyond a stop do not count;
* **acceptance length** is `mean(accepted) + 1` over the rounds;
* **tokens per second** is `(generated - 1) / decode_seconds`: the first token is prefill's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

FRUITLESS = 16
"""Rounds without one right draft after which a person is told."""
FRUITLESS_NOTE = (
    f"not one draft of {FRUITLESS} rounds was right: the drafter may be of another target, or"
    " trained in the other thinking mode; --no-draft is faster with it"
)
STOCK_KERNELS = "stock MLX"
"""A configuration's `kernels` where all that computes is MLX's own."""
FUSED_LAYERS = "fused layers"
"""Where the target's layers are those of `target.fused`, made for a CPU with OpenBLAS."""


def acceptance_length(accepted: Sequence[int]) -> float | None:
    """Mean accepted drafts + 1 over the rounds; None where there was no round."""
    return sum(accepted) / len(accepted) + 1 if accepted else None


def acceptance_by_position(accepted: Sequence[int], drafted: Sequence[int]) -> list[float]:
    """Share of the rounds drafting at least k tokens that accepted k, for k = 1, 2, ..."""
    return [
        sum(a >= k for a in accepted) / sum(d >= k for d in drafted)
        for k in range(1, max(drafted, default=0) + 1)
    ]


@dataclass(frozen=True)
class Configuration:
    """What really ran, for the statistics: never what was merely asked for.

    `block_size` is the most rows of a drafter's round, 1 where none drafts; `auto` tells that each
    round's were chosen, and `copies` that drafts might be copied, in rounds of more rows too.
    `draft_vocab` is how many tokens drafts come from; None is all of the target's.
    """

    model: str
    draft_model: str | None
    target_dtype: str
    draft_dtype: str | None
    device: str
    blas: str
    compiled: bool
    exact: bool
    block_size: int
    kernels: str
    notes: tuple[str, ...] = ()
    draft_vocab: int | None = None
    auto: bool = False
    copies: bool = False

    def noting(self, note: str) -> Configuration:
        """The same, with one more note."""
        return replace(self, notes=(*self.notes, note))


@dataclass
class Stats:
    """Counts and times of one generation, complete at every event.

    `plain_steps` counts passes without drafts, prefill's apart; `copied_rounds` the rounds whose
    drafts were copied, and `copied_tokens` those of them that were right. `host_reads` is how
    often the host waited for the device. `model_seconds` of `decode_seconds` went into building,
    queueing and awaiting the two models' passes and the choice of tokens; the rest is outside.
    """

    configuration: Configuration
    seed: int
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    plain_steps: int = 0
    copied_rounds: int = 0
    copied_tokens: int = 0
    host_reads: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    model_seconds: float = 0.0
    peak_memory: int = 0

    @property
    def rounds(self) -> int:
        """How many verification passes had drafts."""
        return len(self.accepted)

    @property
    def rows(self) -> tuple[int, float, int] | None:
        """The fewest rows of a pass, their mean and the most; None where prefill's was the last."""
        rows = [1] * self.plain_steps + [drafts + 1 for drafts in self.drafted]
        return (min(rows), sum(rows) / len(rows), max(rows)) if rows else None

    @property
    def acceptance_length(self) -> float | None:
        """Mean accepted drafts + 1 over the rounds; None where there was no round."""
        return acceptance_length(self.accepted)

    @property
    def fruitless(self) -> bool:
        """Whether the drafter has drafted in 16 rounds or more, and was never right."""
        drafted = self.rounds - self.copied_rounds
        return drafted >= FRUITLESS and sum(self.accepted) == self.copied_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, over the seconds after the first; None for a single token."""
        if self.generated_tokens < 2 or self.decode_seconds <= 0:
            return None
        return (self.generated_tokens - 1) / self.decode_seconds

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the rounds drafting at least k tokens that accepted k, for k = 1, 2, ..."""
        return acceptance_by_position(self.accepted, self.drafted)


@dataclass(frozen=True)
class Event:
    """What one round (or, first, prefill) added.

    `text` is answer text and `thinking` reasoning text, each ready to print: the pieces of a
    generation joined are its whole text. `accepted` is None where nothing was drafted: for
    prefill's token, and in plain decoding. `finish_reason` is `"stop"`, `"length"` or None while
    the generation goes on.
    """

    text: str
    thinking: str
    tokens: list[int]
    accepted: int | None
    finish_reason: str | None
    stats: Stats


@dataclass(frozen=True)
class Result:
    """A whole generation. `text` is the answer; `thinking` what a reasoning model thought."""

    text: str
    thinking: str
    tokens: list[int]
    finish_reason: str
    stats: Stats
