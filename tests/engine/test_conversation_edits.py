"""A conversation that is changed: taken back, answered anew, gone on from elsewhere, instructed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from dflash_mlx.engine.events import Event
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.engine.session import Session
from dflash_mlx.errors import UsageError
from tests.tiny_folders import tiny_pair

OPTIONS = Options(Sampling(temperature=1.0), max_tokens=8, seed=5)


def session(system: str | None = None) -> Session:
    return tiny_pair().session(system, OPTIONS)


def said(events: Iterable[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


def roles(session: Session) -> list[str]:
    return [message["role"][0] for message in session.messages]


def alone(prompt: Sequence[int], turn: int, retry: int) -> list[int]:
    """What a pair without a past says to `prompt`."""
    pair = tiny_pair()
    return said(stream(pair, pair.context(), prompt, OPTIONS, turn=turn, retry=retry))


def test_a_turn_taken_back_was_never_there() -> None:
    one = session()
    said(one.send("first"))
    before = [dict(message) for message in one.messages]
    second = said(one.send("second"))
    assert one.undo() == "second"
    assert (one.messages, one.turn) == (before, 1)
    assert said(one.send("second")) == second


def test_nothing_asked_cannot_be_taken_back_or_retried() -> None:
    for change in (session(system="S").undo, session(system="S").retry):
        with pytest.raises(UsageError, match="Nothing has been asked yet"):
            change()


def test_each_retry_has_noise_of_its_own_and_replaces_the_answer() -> None:
    one = session()
    said(one.send("zero"))
    answers = [said(one.send("question"))]
    answers += [said(one.retry()) for _ in range(2)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert roles(one) == ["u", "a", "u", "a"]
    assert one.turn == 2


def test_a_retry_forwards_one_token_and_says_what_a_pair_without_a_past_says() -> None:
    one = session()
    said(one.send("question"))
    events = list(one.retry())
    prompt = one.pair.encode(one.pair.render([one.messages[0]]))
    assert events[-1].stats.prompt_tokens - events[-1].stats.reused_tokens == 1
    assert said(events) == alone(prompt, turn=0, retry=1)


def test_a_retry_stopped_before_its_first_word_keeps_the_old_answer() -> None:
    one = session()
    said(one.send("question"))
    before = [dict(message) for message in one.messages]
    one.retry().close()
    assert one.messages == before


def test_a_retry_that_was_stopped_half_way_keeps_its_part() -> None:
    one = session()
    said(one.send("question"))
    events = one.retry()
    part = next(events).text
    events.close()
    assert [message["content"] for message in one.messages] == ["question", part]


def test_noise_begins_again_after_a_retried_turn() -> None:
    one, other = session(), session()
    said(one.send("first"))
    said(one.retry())
    one.undo()
    said(one.send("first"))
    said(other.send("first"))
    assert said(one.send("second")) == said(other.send("second"))


def test_a_conversation_goes_on_from_messages_as_if_it_had_been_spoken_here() -> None:
    one, other = session(), session()
    said(one.send("first"))
    other.load([{"role": "user", "content": "first"}, one.messages[1]])
    assert other.turn == 1
    prompt = other.pair.encode(
        other.pair.render([*other.messages, {"role": "user", "content": "second"}])
    )
    assert said(other.send("second")) == alone(prompt, turn=1, retry=0)


def test_loaded_messages_are_copies() -> None:
    one, messages = (
        session(),
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    )
    one.load(messages)
    one.undo()
    assert len(messages) == 2


def test_instructions_come_first_can_be_changed_and_removed() -> None:
    one = session()
    assert one.system is None
    said(one.send("question"))
    one.system = "Be brief."
    assert roles(one) == ["s", "u", "a"]
    one.system = "Be long."
    assert one.messages[0]["content"] == "Be long."
    assert (one.system, one.turn) == ("Be long.", 1)
    one.system = None
    assert roles(one) == ["u", "a"]


def test_a_changed_conversation_forwards_only_what_is_new() -> None:
    one = session(system="A long instruction at the beginning.")
    said(one.send("question"))
    one.undo()
    *_, last = one.send("quest of another kind")
    begun = one.pair.render([one.messages[0], {"role": "user", "content": "quest"}])
    shared = len(one.pair.encode(begun.split("quest")[0] + "quest"))
    assert last.stats.reused_tokens == shared
