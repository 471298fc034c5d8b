"""One question to an arm, one answer of it, and the figures of a single answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engine.options import Sampling
from ..training.loops import loop_start


@dataclass(frozen=True)
class Asked:
    """What every arm is asked: the same tokens where it takes tokens, the same text where not.

    `tokens` are the prompt as the model's chat template has it; `sampling` None stands for what a
    server does by itself.
    """

    text: str
    tokens: list[int]
    sampling: Sampling | None
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Sample:
    """One answer, timed. The first token belongs to prefill, as everywhere (`engine/events.py`).

    `tokens` is None where an arm does not tell them; `generated` counts them all the same. Each
    round has one number in `accepted` and one in `drafted`; without drafting there are none.
    `model_seconds` is what of `decode_seconds` went into the models, where an arm knows.
    """

    text: str
    prompt_tokens: int
    generated: int
    prefill_seconds: float
    decode_seconds: float
    tokens: list[int] | None = None
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    model_seconds: float | None = None

    @property
    def decode_speed(self) -> float | None:
        """Tokens after the first a second after it; None for a single token."""
        if self.generated < 2 or self.decode_seconds <= 0:
            return None
        return (self.generated - 1) / self.decode_seconds

    @property
    def whole_speed(self) -> float | None:
        """All tokens over all seconds, prefill among them: what somebody who waits sees."""
        seconds = self.prefill_seconds + self.decode_seconds
        return self.generated / seconds if self.generated and seconds > 0 else None

    @property
    def looped(self) -> bool:
        """Whether the answer goes round in circles: such text is easy to draft, and flatters."""
        return loop_start(self.tokens or numbered(self.text.split())) is not None


def numbered(words: Iterable[str]) -> list[int]:
    """Each word as the number of its first place, for an arm that tells no tokens."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(word, len(numbers)) for word in words]
