"""Arms that answer by plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dflash_mlx.benchmark.sample import Asked, Sample
from dflash_mlx.errors import DFlashError

ANSWER = Sample("a b", 3, 5, 0.5, 2.0, tokens=[1, 2, 3, 4, 5])


@dataclass
class FakeArm:
    """Answers `sample`, or what `changes` makes of it; `log` is shared, to see the order."""

    name: str
    sample: Sample = ANSWER
    log: list[str] = field(default_factory=list)
    changes: Callable[[Asked, Sample], Sample] = lambda asked, sample: sample
    same_rule: bool = True
    samples: bool = True
    fails_at: int = 10**6
    failure: Exception = field(default_factory=lambda: DFlashError("it broke."))
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> Sample:
        """By plan."""
        if len(self.asked) >= self.fails_at:
            raise self.failure
        self.asked.append(asked)
        self.log.append(self.name)
        return self.changes(asked, self.sample)

    def close(self) -> None:
        """Nothing."""


def faster(times: float) -> Sample:
    """The usual answer, with drafts, so many times as fast after the first token."""
    return replace(ANSWER, decode_seconds=2.0 / times, accepted=[2, 0, 1], drafted=[3, 3, 3])
