"""Conversations written by the target as it is served: its answers, and often its users too.

All slots are busy as long as there are conversations to have. A prompt enters its slot by prefill;
what follows is decoded a token a pass, and what a template puts between turns is fed the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, cast

import mlx.core as mx

from ..engine.noise import Key, stream_key
from ..engine.options import Sampling
from ..engine.sampling import Chooser
from ..pair import Pair
from .conversations import Conversation, conversation
from .loops import GRAM, LoopDetector
from .prompts import Plan
from .settings import PrepareSettings
from .slots import Slots
from .template import Template, take_apart

_USER_TOKENS = 80
"""How long the target may speak as the user."""

_USER_TEMPERATURE = 1.0
_NOBODY = mx.zeros([0], mx.int32)


@dataclass(frozen=True)
class Written:
    """A conversation that is done; `looped` says that it ended going round in circles."""

    plan: Plan
    talk: Conversation
    looped: bool


class Advance(NamedTuple):
    """What a prefill or a pass brought: conversations that it ended, tokens said in the others."""

    done: list[Written]
    unfinished: int


class Manner(NamedTuple):
    """How a token is chosen: the target speaking as the user or as itself, and how freely."""

    user: bool
    temperature: float


class Writer:
    """Writes conversations with `pair`'s target."""

    def __init__(self, pair: Pair, settings: PrepareSettings):
        self._pair = pair
        self._settings = settings
        self._templates: dict[str | None, Template] = {}
        special = getattr(pair.tokenizer, "all_special_ids", None) or ()
        self._ends = pair.stop_tokens | frozenset(special)

    def template(self, system: str | None) -> Template:
        """The pieces of the chat template behind some instructions."""
        if system not in self._templates:
            pieces = take_apart(self._pair, system, self._settings.thinking)
            self._templates[system] = pieces
        return self._templates[system]

    def fits(self, plan: Plan) -> bool:
        """Whether the prompt leaves room for an answer of two tokens: less teaches nothing."""
        return len(self.first_prompt(plan)) + 2 <= plan.length

    def write(self, plans: Sequence[Plan], attempt: int = 0) -> Iterator[Advance]:
        """Have the conversations of `plans`, all of which fit, yielding after every pass.

        Long ones, which come last, have fewer slots, so that memory stays the same. `attempt`
        makes the sampling of a resumed run other than that of the run before.
        """
        keys = (stream_key(self._settings.seed, step, attempt) for step in count(1))
        for length in sorted({plan.length for plan in plans}):
            group = deque(plan for plan in plans if plan.length == length)
            shortest = min(self._settings.length, length)
            slots = max(self._settings.slots * shortest // length, 1)
            yield from self._write(group, min(slots, len(group)), keys)

    def _write(self, plans: deque[Plan], size: int, keys: Iterator[Key]) -> Iterator[Advance]:
        slots = Slots(self._pair.target, size)
        busy: list[Talk] = []
        for slot in range(size):
            busy.append(self._begin(plans.popleft(), slots, slot))
            yield Advance([], 0)
        while busy:
            logits = slots.step([talk.tokens[-1] for talk in busy])
            for talk, token in zip(busy, self._choose(logits, busy, next(keys)), strict=True):
                talk.take(token)
            done = [talk.written() for talk in busy if talk.done]
            yield Advance(done, sum(talk.flags.count(True) for talk in busy if not talk.done))
            kept = []
            for slot, talk in enumerate(busy):
                if talk.done:
                    if not plans:
                        continue
                    busy[slot] = self._begin(plans.popleft(), slots, slot)
                kept.append(slot)
            if len(kept) < len(busy):
                slots.keep(kept)
                busy = [busy[slot] for slot in kept]

    def _begin(self, plan: Plan, slots: Slots, slot: int) -> Talk:
        """Start a conversation in a slot: all of its prompt but the last token is prefilled."""
        talk = Talk(plan, self.template(plan.prompt.system), self._settings.turns, self)
        slots.begin(slot, talk.tokens[:-1])
        return talk

    def _choose(self, logits: mx.array, busy: list[Talk], key: Key) -> list[int]:
        """The next token of every conversation; what its template dictates is not chosen."""
        chosen = [talk.dictated[0] if talk.dictated else -1 for talk in busy]
        alike: dict[Manner, list[int]] = {}
        for slot, talk in enumerate(busy):
            if not talk.dictated:
                alike.setdefault(talk.manner, []).append(slot)
        opening = [slot for slot, talk in enumerate(busy) if talk.must_speak]
        if opening:
            banned = mx.array(sorted(self._ends))
            logits[mx.array(opening)[:, None], banned[None]] = -mx.inf
        for manner, rows in alike.items():
            own = logits if len(rows) == len(busy) else logits[mx.array(rows)]
            if manner.user:
                noise = mx.array(key, mx.uint32)
                tokens = mx.random.categorical(own * (1 / manner.temperature), key=noise)
            else:
                sampling = self._sampling(manner)
                own = repeated_less(own, [busy[slot].tokens for slot in rows], sampling)
                unbiased = replace(sampling, repetition_penalty=1.0)
                tokens = Chooser(unbiased, key).choose(own, [], _NOBODY)
            for slot, token in zip(rows, cast("list[int]", tokens.tolist()), strict=True):
                chosen[slot] = token
        return chosen

    def encode(self, text: str) -> list[int]:
        """Token ids of what a user says."""
        return self._pair.encode(text)

    def first_prompt(self, plan: Plan) -> list[int]:
        """Token ids up to where somebody speaks: the assistant, or the target as the user."""
        prompt = plan.prompt
        if not prompt.turns:
            return list(self.template(prompt.system).opening)
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages.append({"role": "user", "content": prompt.turns[0]})
        return self._pair.encode(self._pair.render(messages, self._settings.thinking))

    def _sampling(self, manner: Manner) -> Sampling:
        """How the assistant speaks: greedily, or in the pair's own way of sampling."""
        if not manner.temperature:
            return Sampling()
        return replace(self._pair.defaults, temperature=manner.temperature)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """What ends the assistant's turn."""
        return self._pair.stop_tokens

    @property
    def ends(self) -> frozenset[int]:
        """What ends the target's turn as the user: any special token."""
        return self._ends


def repeated_less(
    logits: mx.array, histories: Sequence[Sequence[int]], sampling: Sampling
) -> mx.array:
    """Logits [n, V] with the repetition penalty, each row's for the tokens of its own history."""
    penalty, size = sampling.repetition_penalty, sampling.repetition_context_size
    if penalty == 1:
        return logits
    recent = [list(history[-size:]) for history in histories]
    known = mx.array([[*words, *words[-1:] * (size - len(words))] for words in recent])
    old = mx.take_along_axis(logits, known, axis=-1)
    new = mx.where(old < 0, old * penalty, old / penalty)
    return mx.put_along_axis(logits, known, new, axis=-1)


class Talk:
    """A conversation in the making: the tokens so far, who speaks, and what is dictated next."""

    def __init__(self, plan: Plan, template: Template, turns: int, writer: Writer):
        self._plan = plan
        self._template = template
        self._writer = writer
        self._scripted = deque(plan.prompt.turns[1:])
        self._turns_left = (turns if plan.prompt.goes_on else len(plan.prompt.turns)) - 1
        self._user_speaks = not plan.prompt.turns
        self._said = 0
        self._looped = False
        self._detector = LoopDetector()
        self.tokens = writer.first_prompt(plan)
        self.flags = [False] * len(self.tokens)
        self.dictated: deque[int] = deque()
        self.done = False

    @property
    def manner(self) -> Manner:
        """How the next token is to be chosen."""
        temperature = _USER_TEMPERATURE if self._user_speaks else self._plan.temperature
        return Manner(self._user_speaks, temperature)

    @property
    def must_speak(self) -> bool:
        """Whether the target is about to begin a turn as the user, who says something."""
        return self._user_speaks and not self.dictated and self._said == 0

    def take(self, token: int) -> None:
        """Add the token that was chosen or dictated, and see what it ends."""
        if self.dictated:
            self._add(self.dictated.popleft(), by_assistant=False)
        elif self._user_speaks:
            self._hear(token)
        else:
            self._answer(token)
        self.done = self.done or len(self.tokens) >= self._plan.length

    def written(self) -> Written:
        """The conversation as it is now."""
        talk = conversation(self.tokens, self.flags, self._plan.temperature)
        return Written(self._plan, talk, self._looped)

    def _add(self, token: int, by_assistant: bool) -> None:
        self.tokens.append(token)
        self.flags.append(by_assistant)

    def _hear(self, token: int) -> None:
        """A token of the target as the user."""
        if token not in self._writer.ends:
            self._add(token, by_assistant=False)
            self._said += 1
        if token in self._writer.ends or self._said == _USER_TOKENS:
            self._dictate(self._template.reply)

    def _answer(self, token: int) -> None:
        """A token of the assistant: it may end the turn, or show that it goes round in circles."""
        self._add(token, by_assistant=True)
        if token in self._writer.stop_tokens:
            self._next_turn()
        elif self._detector.push(token):
            del self.tokens[-GRAM:], self.flags[-GRAM:]
            self.done = self._looped = True

    def _next_turn(self) -> None:
        self._detector = LoopDetector()
        if self._turns_left == 0 or self._template.following is None:
            self.done = True
            return
        self._turns_left -= 1
        following = list(self._template.following)
        if self._scripted:
            words = self._writer.encode(self._scripted.popleft())
            self._dictate([*following, *words, *self._template.reply])
        else:
            self._user_speaks, self._said = True, 0
            self.dictated.extend(following)

    def _dictate(self, tokens: Sequence[int]) -> None:
        """What the template says next; then the assistant speaks."""
        self.dictated.extend(tokens)
        self._user_speaks = False
