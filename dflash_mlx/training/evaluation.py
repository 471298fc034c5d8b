"""How a drafter does: walked over answers that are known, and served through the real engine.

Served is what a user gets. Walked is the same without the engine: where decoding is greedy and in
float32, the rounds are equal one by one, which an evaluation checks on what it has served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ..engine.generation import stream
from ..engine.options import Options
from ..pair import Pair
from .conversations import Conversation, conversation
from .loops import loop_start
from .walking import Acceptance, Walker


@dataclass(frozen=True)
class Served:
    """One answer through the engine: its tokens and rounds, and how fast it came.

    `plain_speed` is that of decoding without the drafter, if it was timed, and `same` whether that
    gave the same tokens. Speeds are in tokens per second.
    """

    prompt: list[int]
    tokens: list[int]
    accepted: list[int]
    drafted: list[int]
    speed: float | None
    plain_speed: float | None = None
    same: bool | None = None

    @property
    def looped(self) -> bool:
        """Whether the answer goes round in circles."""
        return loop_start(self.tokens) is not None

    @property
    def times_plain(self) -> float | None:
        """How many times plain decoding's speed this was, where both were timed."""
        return self.speed / self.plain_speed if self.speed and self.plain_speed else None


@dataclass
class ServedSet:
    """Answers to a set of prompts, and the figures of all of them together."""

    answers: list[Served] = field(default_factory=list)

    @property
    def acceptance(self) -> Acceptance:
        """The rounds of all answers, pooled."""
        total = Acceptance()
        for one in self.answers:
            total.add(Acceptance(one.accepted, one.drafted))
        return total

    def apart(self) -> tuple[ServedSet, ServedSet]:
        """The answers that come to an end, and those that go round in circles, which flatter."""
        looped = ServedSet([one for one in self.answers if one.looped])
        return ServedSet([one for one in self.answers if not one.looped]), looped

    def to_json(self) -> dict[str, Any]:
        """The figures, for files and for the model card; speeds are medians over the answers."""
        acceptance = self.acceptance
        return {
            "answers": len(self.answers),
            "rounds": len(acceptance.accepted),
            "acceptance_length": acceptance.length,
            "by_position": acceptance.by_position,
            "tokens_per_second": _median(one.speed for one in self.answers),
            "plain_tokens_per_second": _median(one.plain_speed for one in self.answers),
            "times_plain": _median(one.times_plain for one in self.answers),
            "same_as_plain": [one.same for one in self.answers if one.same is not None],
        }


def _median(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value]
    return median(known) if known else None


def serve(
    pair: Pair, prompts: Sequence[Sequence[int]], options: Options, plain: bool
) -> Iterator[Served]:
    """Answer each prompt through the engine; with `plain`, by plain decoding too, in turns.

    Which of the two comes first changes from prompt to prompt, so that neither has warmer caches.
    """
    for number, prompt in enumerate(prompts):
        draws = replace(options, seed=(options.seed or 0) + number)
        without: Served | None = None
        if plain and number % 2:
            without = _serve(pair, prompt, replace(draws, draft=False))
        one = _serve(pair, prompt, draws)
        if plain and not number % 2:
            without = _serve(pair, prompt, replace(draws, draft=False))
        if without is not None:
            same = without.tokens == one.tokens
            one = replace(one, plain_speed=without.speed, same=same)
        yield one


def walked_like_served(
    pair: Pair, answers: Iterable[Served], rows: int | None, limit: int
) -> Iterator[bool]:
    """For each greedy answer of up to `limit` tokens, whether a walk gives the rounds served."""
    assert pair.drafter is not None
    walker = Walker(pair.target, pair.drafter, pair.stop_tokens, rows)
    for one in answers:
        yield walker.walk(as_conversation(one), limit).accepted == one.accepted


def as_conversation(served: Served) -> Conversation:
    """A served answer behind its prompt."""
    flags = [False] * len(served.prompt) + [True] * len(served.tokens)
    return conversation([*served.prompt, *served.tokens], flags)


def first_prompts(conversations: Sequence[Conversation]) -> list[list[int]]:
    """What comes before the first answer of each conversation."""
    return [item.ids[: item.answers[0][0]].tolist() for item in conversations if item.answers]


def _serve(pair: Pair, prompt: Sequence[int], options: Options) -> Served:
    tokens: list[int] = []
    for event in stream(pair, pair.context(), prompt, options):
        tokens += event.tokens
    stats = event.stats
    return Served(
        list(prompt), tokens, list(stats.accepted), list(stats.drafted), stats.tokens_per_second
    )
