"""A conversation: what is kept between turns, and that a cold start would say the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.engine.events import Event
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.engine.session import Session
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.target.model import Target
from tests.tiny_folders import LETTERS, LETTERS_ONLY, VOCABULARY, tiny_pair

OPTIONS = Options(LETTERS_ONLY, max_tokens=7, seed=5)
QUESTIONS = ["How are you?", "And then?", "Why so?"]


class CountingModel:
    """A model that notes how many tokens each of its passes takes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.rows: list[int] = []

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.rows.append(tokens.shape[1])
        return self._model(tokens, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def reply(session: Session, text: str, **changes: Any) -> list[int]:
    """The tokens of the answer to `text`."""
    events = list(session.send(text, replace(session.options, **changes)))
    return [token for event in events for token in event.tokens]


def cold_reply(session: Session, text: str) -> list[int]:
    """The answer of a session that knows the conversation from its messages alone."""
    cold = session.pair.session(options=session.options)
    cold.load(session.messages)
    return reply(cold, text)


def test_a_later_turn_forwards_only_what_is_new() -> None:
    """Report 70: the new words, and the last token said, which no cache holds yet."""
    target = copy.copy(tiny_pair().target)
    target.model = model = CountingModel(target.model)  # type: ignore[assignment]
    session = replace(tiny_pair(), target=target).session(options=OPTIONS)
    known = 0
    for question in QUESTIONS:
        model.rows.clear()
        events = session.send(question)
        stats = next(events).stats

        assert sum(model.rows) == stats.prompt_tokens - known + (1 if known else 0)
        assert stats.reused_tokens == max(known - 1, 0)

        list(events)
        assert stats.rounds > 0
        known = stats.prompt_tokens + stats.generated_tokens


def test_the_models_own_tokens_stay_where_its_text_would_be_encoded_otherwise() -> None:
    """Here every other token has no text at all, so that an encoding anew would lose it."""
    silent = range(VOCABULARY - 20, VOCABULARY)
    bias = dict.fromkeys([*LETTERS, *silent], 200.0)
    options = Options(Sampling(temperature=8.0, logit_bias=bias), max_tokens=12, seed=5)
    session = tiny_pair().session(options=options)
    said = reply(session, QUESTIONS[0])
    assert 2 < len(set(said) & set(silent)) < 10

    stats = next(session.send(QUESTIONS[1])).stats

    prompt = tiny_pair().encode(tiny_pair().render([{"role": "user", "content": QUESTIONS[0]}]))
    assert stats.reused_tokens == len(prompt) + len(said) - 1


def test_every_turn_says_what_a_cold_start_would_say() -> None:
    session = tiny_pair().session("Be brief.", OPTIONS)
    for question in QUESTIONS:
        expected = cold_reply(session, question)
        assert reply(session, question) == expected

    roles = [message["role"] for message in session.messages]
    assert roles == ["system"] + ["user", "assistant"] * 3
    assert session.turn == 3


@pytest.mark.parametrize("block_size", [2, 5, 8])
def test_a_conversation_is_the_same_without_the_drafter(block_size: int) -> None:
    drafted = tiny_pair().session(options=replace(OPTIONS, block_size=block_size))
    plain = tiny_pair().session(options=replace(OPTIONS, draft=False))

    for question in QUESTIONS:
        assert reply(drafted, question) == reply(plain, question)
    assert drafted.messages == plain.messages


def test_a_conversation_may_draft_in_some_turns_only() -> None:
    mixed = tiny_pair().session(options=OPTIONS)
    plain = tiny_pair().session(options=replace(OPTIONS, draft=False))

    for question, draft in zip(QUESTIONS, (True, False, True), strict=True):
        assert reply(mixed, question, draft=draft) == reply(plain, question)


def test_a_seed_fixes_a_conversation_and_another_changes_it() -> None:
    def conversation(seed: int) -> list[list[int]]:
        session = tiny_pair().session(options=replace(OPTIONS, seed=seed))
        return [reply(session, question) for question in QUESTIONS[:2]]

    assert conversation(5) == conversation(5)
    assert conversation(5) != conversation(6)


def test_turn_and_retry_enter_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a seed would repeat itself at the same place of another reply."""
    numbers: list[tuple[int, int]] = []

    def spy(*arguments: Any, turn: int, retry: int, **named: Any) -> Iterator[Event]:
        numbers.append((turn, retry))
        return stream(*arguments, turn=turn, retry=retry, **named)

    monkeypatch.setattr("dflash_mlx.engine.session.stream", spy)
    session = tiny_pair().session("Be brief.", replace(OPTIONS, max_tokens=1))
    reply(session, QUESTIONS[0])
    reply(session, QUESTIONS[1])
    list(session.retry())
    list(session.retry())
    reply(session, QUESTIONS[2])

    assert numbers == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_a_retry_has_other_noise_and_takes_the_place_of_the_answer() -> None:
    session = tiny_pair().session(options=OPTIONS)
    reply(session, QUESTIONS[0])
    first = list(session.send(QUESTIONS[1]))

    retries = [list(session.retry()) for _ in range(2)]

    answers = [
        [token for event in events for token in event.tokens] for events in (first, *retries)
    ]
    assert len({tuple(answer) for answer in answers}) == 3
    assert len({events[0].stats.prompt_tokens for events in (first, *retries)}) == 1
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2
    assert session.messages[-1]["content"] == tiny_pair().token_bytes.decode(answers[-1])


def test_a_question_taken_back_leaves_no_trace() -> None:
    session = tiny_pair().session(options=OPTIONS)
    reply(session, QUESTIONS[0])
    first = reply(session, QUESTIONS[1])

    assert session.undo() == QUESTIONS[1]

    assert session.turn == 1
    assert reply(session, QUESTIONS[1]) == first


def test_nothing_asked_cannot_be_retried_or_taken_back() -> None:
    session = tiny_pair().session("Be brief.", OPTIONS)

    with pytest.raises(UsageError, match="Nothing has been asked yet"):
        session.retry()
    with pytest.raises(UsageError, match="Nothing has been asked yet"):
        session.undo()


def test_the_system_prompt_can_be_set_changed_and_dropped() -> None:
    session = tiny_pair().session(options=OPTIONS)
    assert session.system is None
    reply(session, QUESTIONS[0])
    for text in ("Be brief.", "Be kind."):
        session.system = text
        assert session.system == text
        assert [message["role"] for message in session.messages] == ["system", "user", "assistant"]

    session.system = None

    assert session.system is None
    assert reply(session, QUESTIONS[1]) == cold_reply_before(session, QUESTIONS[1])


def cold_reply_before(session: Session, text: str) -> list[int]:
    """What a cold session says to the last question, given the messages before it."""
    cold = session.pair.session(options=session.options)
    cold.load(session.messages[:-2])
    return reply(cold, text)


@pytest.mark.parametrize("events_heard", [1, 2, 3])
def test_a_reply_cut_short_stays_as_far_as_it_came(events_heard: int) -> None:
    session = tiny_pair().session(options=OPTIONS)
    reply(session, QUESTIONS[0])
    events = session.send(QUESTIONS[1])
    heard = [next(events) for _ in range(events_heard)]

    events.close()

    said = "".join(event.text for event in heard)
    assert session.messages[-2:] == [
        {"role": "user", "content": QUESTIONS[1]},
        {"role": "assistant", "content": said},
    ]
    expected = cold_reply(session, QUESTIONS[2])
    assert reply(session, QUESTIONS[2]) == expected


def test_a_reply_left_half_heard_is_kept_when_the_next_question_comes() -> None:
    session = tiny_pair().session(options=OPTIONS)
    left = session.send(QUESTIONS[0])
    text = next(left).text

    reply(session, QUESTIONS[1])

    assert session.messages[1] == {"role": "assistant", "content": text}
    assert list(left) == [], "the old reply is over"


def test_a_reply_of_which_nothing_was_heard_withdraws_its_question() -> None:
    session = tiny_pair().session(options=OPTIONS)
    first = reply(session, QUESTIONS[0])
    session.send(QUESTIONS[1]).close()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(session.send(QUESTIONS[1], progress=stop))

    assert len(session.messages) == 2
    session.undo()
    assert reply(session, QUESTIONS[0]) == first


def test_a_question_that_does_not_fit_changes_nothing() -> None:
    pair = tiny_pair()
    config = {**pair.target.config, "max_position_embeddings": 120}
    small = replace(pair, target=Target(pair.target.model, config, pair.target.tap_ids))
    session = small.session(options=OPTIONS)
    reply(session, QUESTIONS[0])
    messages = list(session.messages)

    with pytest.raises(DFlashError, match="start a new conversation"):
        session.send("word " * 60)

    assert session.messages == messages
    assert reply(session, QUESTIONS[1]) == cold_reply_before(session, QUESTIONS[1])


def test_two_conversations_do_not_disturb_each_other() -> None:
    pair: Pair = tiny_pair()
    alone = pair.session(options=OPTIONS)
    expected = [reply(alone, question) for question in QUESTIONS]
    one, other = pair.session(options=OPTIONS), pair.session(options=OPTIONS)

    for question, answer in zip(QUESTIONS, expected, strict=True):
        asked = one.send(question)
        first = next(asked)
        assert reply(other, question) == answer
        assert first.tokens + [token for event in asked for token in event.tokens] == answer
