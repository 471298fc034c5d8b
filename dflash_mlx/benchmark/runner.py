"""The order in which arms answer: prompt by prompt, in turns, so that heat slows all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..errors import DFlashError
from .arms import Arm
from .sample import Asked, Sample
from .strata import Stratum

WARM_UP_TOKENS = 16
_FARTHER = 4
"""A prompt so many times as long as any before meets kernels and costs that are not yet warm."""
_PROBES = 3

Encode = Callable[[str], list[int]]
Tell = Callable[[int, int, str], None]
"""Told (answers so far, answers to come, the stratum)."""


@dataclass(frozen=True)
class Record:
    """One answer, and where it belongs. `place` counts all answers in the order they were given."""

    stratum: str
    prompt: str
    run: int
    arm: str
    place: int
    sample: Sample


@dataclass
class Measured:
    """All that was measured; complete at every moment, should somebody stop it.

    `failed` are arms that were left out from some place on, and why.
    """

    warm_up: dict[str, Sample] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    plain_speeds: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """What to measure. The first arm is the one that all others are compared with."""

    arms: Sequence[Arm]
    strata: Sequence[Stratum]
    encode: Encode
    max_tokens: int
    runs: int = 1
    seed: int = 0

    def measure(self, into: Measured, tell: Tell = lambda done, total, stratum: None) -> None:
        """Warm every arm up, then let all answer every prompt, in an order that turns around.

        An arm that fails, however it does, is left out from there on: what it and the others said
        stands. Raises what the first arm raises. `into` grows as answers come.
        """
        arms = list(self.arms)
        warm = self._warm_up(self.strata[0], 0, arms, into)
        total = self.runs * sum(len(stratum.prompts) for stratum in self.strata) * len(self.arms)
        self._probe(arms, into)
        for run in range(self.runs):
            for stratum in self.strata:
                warm = self._warm_up(stratum, warm, arms, into)
                for number, prompt in enumerate(stratum.prompts):
                    tell(len(into.records), total, stratum.name)
                    asked = self._asked(stratum, number, self.max_tokens)
                    for arm in list(arms) if (number + run) % 2 == 0 else list(reversed(arms)):
                        if _can(arm, asked):
                            self._try(arm, arms, asked, into, (stratum.name, prompt, run))
                self._probe(arms, into)
        tell(total, total, "")

    def _warm_up(self, stratum: Stratum, warm: int, arms: list[Arm], into: Measured) -> int:
        """Let all arms answer a stratum's first prompt, unless one about as long has been.

        `warm` is the length of the longest prompt so far, which is returned.
        """
        asked = self._asked(stratum, 0, WARM_UP_TOKENS)
        length = len(asked.text)
        if length < _FARTHER * warm:
            return warm
        for arm in list(arms):
            if _can(arm, asked):
                self._try(arm, arms, asked, into)
        return length

    def _try(
        self,
        arm: Arm,
        arms: list[Arm],
        asked: Asked,
        into: Measured,
        belongs: tuple[str, str, int] | None = None,
    ) -> None:
        """Let an arm answer; one that fails is struck off `arms`, unless it is the first."""
        try:
            sample = arm.answer(asked)
        except Exception as error:  # whatever mlx-lm, a peer or a device may raise
            if arm is self.arms[0]:
                raise
            arms.remove(arm)
            into.failed[arm.name] = told(error)
            return
        if belongs is None:
            into.warm_up.setdefault(arm.name, sample)
        else:
            into.records.append(Record(*belongs, arm.name, len(into.records), sample))

    def _probe(self, arms: Sequence[Arm], into: Measured) -> None:
        """The first arm on the first prompt, again and again: does the machine keep its speed?"""
        asked = self._asked(self.strata[0], 0, WARM_UP_TOKENS)
        speeds = [arms[0].answer(asked).decode_speed for _ in range(_PROBES)]
        if known := [speed for speed in speeds if speed]:
            into.plain_speeds.append(median(known))

    def _asked(self, stratum: Stratum, number: int, max_tokens: int) -> Asked:
        prompt = stratum.prompts[number]
        tokens = self.encode(prompt)
        return Asked(prompt, tokens, stratum.sampling, max_tokens, self.seed + number)


def told(error: Exception) -> str:
    """An error in a line: our own are sentences, of others the kind says most."""
    line = str(error).partition("\n")[0]
    return line if isinstance(error, DFlashError) else f"{type(error).__name__}: {line}"


def _can(arm: Arm, asked: Asked) -> bool:
    """Whether the arm can be asked this: some are greedy only."""
    return arm.samples or (asked.sampling is not None and asked.sampling.greedy)
