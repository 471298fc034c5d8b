"""One generation: where it ends, what it counts, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.events import Event
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.engine.output import Output
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.pair import Pair
from dflash_mlx.target.model import Target
from tests.tiny import MIXED, ORACLE, ZERO, Script, cached_rows, drafter_rows, same_bits
from tests.tiny_folders import LETTERS, VOCABULARY, tiny_pair

BLOCK = 8
PROMPT = list(range(30, 42))
SPEAKING = Options(
    Sampling(temperature=2.0, logit_bias=dict.fromkeys(LETTERS, 40.0)),
    max_tokens=2 * BLOCK + 8,
    seed=1,
)


@cache
def truth() -> list[int]:
    """What the pair says after `PROMPT` without a drafter."""
    tokens = said(listen(tiny_pair(), replace(SPEAKING, draft=False)))
    assert set(tokens) <= set(LETTERS)
    assert len(set(tokens[: 2 * BLOCK])) > 8
    return tokens


def listen(
    pair: Pair,
    options: Options,
    accepts: Sequence[int] | None = None,
    context: Context | None = None,
) -> list[Event]:
    """A generation after `PROMPT`: by the pair's own drafter, or by a script."""
    if context is None:
        context = pair.context() if accepts is None else scripted(pair, accepts)
    return list(stream(pair, context, PROMPT, options))


def scripted(pair: Pair, accepts: Sequence[int]) -> Context:
    """A context whose drafter is right by plan, and keeps its own context as ever."""
    assert pair.drafter is not None
    keeper = BlockDrafting(pair.target, pair.drafter)
    return Context(pair.target, Script(truth(), len(PROMPT), accepts, keeper))


def said(events: list[Event]) -> list[int]:
    """The tokens of all events."""
    return [token for event in events for token in event.tokens]


def text_of(events: list[Event]) -> str:
    """The text of all events."""
    return "".join(event.text for event in events)


def stopping_at(token: int) -> Pair:
    """The tiny pair with another end-of-text token."""
    return replace(tiny_pair(), stop_tokens=frozenset({token}))


@pytest.mark.parametrize("place", range(1 + 2 * BLOCK))
def test_a_stop_token_ends_the_reply_wherever_in_a_block_it_comes(place: int) -> None:
    """Report 8: nothing after it is emitted or counted, and the last round counts up to it."""
    token = truth()[place]
    place = truth().index(token)

    events = listen(stopping_at(token), SPEAKING, ORACLE)

    assert said(events) == truth()[: place + 1]
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + ["stop"]
    stats = events[-1].stats
    assert stats.generated_tokens == place + 1
    rounds, kept = divmod(place, BLOCK)  # place 0 is prefill's
    last = [] if kept == 0 else [kept]
    assert stats.accepted == [BLOCK - 1] * rounds + last


def test_a_stop_token_shows_no_text() -> None:
    token = truth()[10]
    place = truth().index(token)

    events = listen(stopping_at(token), SPEAKING, ORACLE)

    assert text_of(events) == tiny_pair().token_bytes.decode(truth()[:place])


def test_after_a_stop_inside_a_block_the_caches_hold_what_was_said() -> None:
    token = truth()[12]
    pair = stopping_at(token)
    context = scripted(pair, ORACLE)
    events = listen(pair, SPEAKING, context=context)

    fresh = scripted(pair, ORACLE)
    fresh.prefill([*PROMPT, *said(events)][:-1], draft=True)

    assert context.tokens == fresh.tokens
    assert same_bits(cached_rows(context), cached_rows(fresh))
    assert same_bits(kept_rows(context), kept_rows(fresh))


def kept_rows(context: Context) -> list[mx.array]:
    """The rows of the drafter that a scripted context keeps."""
    assert isinstance(context.drafting, Script)
    assert isinstance(context.drafting.keeper, BlockDrafting)
    return drafter_rows(context.drafting.keeper)


@pytest.mark.parametrize("place", [3, 8, 11])
def test_a_stop_string_ends_the_reply_inside_a_block(place: int) -> None:
    """With the very token that completes it, drafted or not; of the string nothing is shown."""
    letters = tiny_pair().token_bytes.decode(truth())
    stop = letters[place : place + 3]
    place = letters.index(stop)
    options = replace(SPEAKING, stop=(stop,))

    for accepts in (ORACLE, ZERO, None):
        events = listen(tiny_pair(), options, accepts)
        assert said(events) == truth()[: place + 3]
        assert text_of(events) == letters[:place]
        assert events[-1].finish_reason == "stop"
        assert events[-1].stats.generated_tokens == place + 3


def test_half_a_stop_string_is_shown_when_the_reply_ends_with_it() -> None:
    letters = tiny_pair().token_bytes.decode(truth()[:6])
    options = replace(SPEAKING, max_tokens=6, stop=(letters[-2:] + "?",))

    events = listen(tiny_pair(), options, ORACLE)

    assert text_of(events) == letters
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("cap", range(1, 2 * BLOCK + 2))
def test_a_cap_is_met_exactly_and_the_books_agree(cap: int) -> None:
    """Report 10: neither fewer tokens nor more than `max_tokens`, and all of them counted."""
    events = listen(tiny_pair(), replace(SPEAKING, max_tokens=cap), MIXED)

    assert said(events) == truth()[:cap]
    assert events[-1].finish_reason == "length"
    stats = events[-1].stats
    assert stats.generated_tokens == cap
    assert stats.accepted == [event.accepted for event in events if event.accepted is not None]
    rounds = [event for event in events if event.accepted is not None]
    assert all(len(event.tokens) == (event.accepted or 0) + 1 for event in rounds)
    assert stats.rounds == len(rounds) == len(stats.drafted)
    assert cap - sum(stats.accepted) - stats.rounds == len(events) - len(rounds)


def test_a_stop_before_the_cap_is_a_stop() -> None:
    place = truth().index(truth()[9])
    for cap in (place, place + 1, place + 2):
        events = listen(stopping_at(truth()[9]), replace(SPEAKING, max_tokens=cap), ORACLE)
        assert said(events) == truth()[: min(cap, place + 1)]
        assert events[-1].finish_reason == ("length" if cap == place else "stop")


def test_nothing_is_drafted_that_the_cap_would_cut_off() -> None:
    events = listen(tiny_pair(), replace(SPEAKING, max_tokens=6), ZERO)

    assert events[-1].stats.drafted == [4, 3, 2, 1]


@pytest.mark.parametrize("cap", [32, 128])
def test_a_short_reply_drafts_too(cap: int) -> None:
    """Report 45: no cap is so small that drafting is left out."""
    pair = tiny_pair()
    events = stream(pair, pair.context(), PROMPT, replace(SPEAKING, max_tokens=cap))

    first = list(islice(events, 4))

    assert first[-1].stats.drafted == [BLOCK - 1] * 3


def with_limit(limit: int) -> Pair:
    """The tiny pair, whose target was made for `limit` tokens."""
    pair = tiny_pair()
    config = {**pair.target.config, "max_position_embeddings": limit}
    return replace(pair, target=Target(pair.target.model, config, pair.target.tap_ids))


@pytest.mark.parametrize("cap", [None, 1000])
def test_a_reply_may_fill_the_context_and_then_says_that_it_was_cut(cap: int | None) -> None:
    """Report 98: the default cap is the context minus the prompt, never a small number."""
    pair = with_limit(len(PROMPT) + 21)

    events = listen(pair, replace(SPEAKING, max_tokens=cap), MIXED)

    assert said(events) == truth()[:21]
    assert events[-1].finish_reason == "length"


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    events = listen(with_limit(len(PROMPT) + 1), SPEAKING)

    assert said(events) == truth()[:1]
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("limit", [len(PROMPT), len(PROMPT) - 3])
def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(limit: int) -> None:
    pair = with_limit(limit)

    with pytest.raises(DFlashError, match=rf"has 12 tokens.*holds {limit}: shorten the prompt"):
        stream(pair, pair.context(), PROMPT, SPEAKING)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(DFlashError, match="prompt is empty"):
        stream(tiny_pair(), tiny_pair().context(), [], SPEAKING)


@pytest.mark.parametrize("token", [VOCABULARY, -1])
def test_tokens_beyond_the_vocabulary_are_refused(token: int) -> None:
    """MLX would read beyond the embedding's end, and write beyond that of the logits."""
    pair, sentence = tiny_pair(), f"Token {token} is outside this model's vocabulary of 320 tokens"

    with pytest.raises(UsageError, match=sentence):
        stream(pair, pair.context(), [1, token], SPEAKING)
    with pytest.raises(UsageError, match=sentence):
        stream(pair, pair.context(), [1], Options(Sampling(logit_bias={token: 1.0})))


def test_a_seed_fixes_the_reply_and_turn_and_retry_change_it() -> None:
    pair = tiny_pair()

    def reply(seed: int, turn: int = 0, retry: int = 0) -> tuple[int, ...]:
        options = replace(SPEAKING, seed=seed, max_tokens=6)
        events = stream(pair, pair.context(), PROMPT, options, turn=turn, retry=retry)
        return tuple(said(list(events)))

    assert reply(1) == reply(1) == tuple(truth()[:6])
    assert len({reply(1), reply(2), reply(1, turn=1), reply(1, retry=1)}) == 4


def test_a_seed_that_was_not_given_is_drawn_and_reported() -> None:
    drawn = [listen(tiny_pair(), replace(SPEAKING, seed=None, max_tokens=5)) for _ in range(2)]
    seeds = [events[-1].stats.seed for events in drawn]

    assert seeds[0] != seeds[1]
    again = listen(tiny_pair(), replace(SPEAKING, seed=seeds[0], max_tokens=5))
    assert said(again) == said(drawn[0])


def test_the_first_event_is_prefills_and_belongs_to_no_round() -> None:
    first, second, *_ = listen(tiny_pair(), SPEAKING, ORACLE)

    assert (len(first.tokens), first.accepted) == (1, None)
    assert (len(second.tokens), second.accepted) == (BLOCK, BLOCK - 1)


def test_plain_decoding_has_no_rounds_and_names_no_drafter() -> None:
    stats = listen(tiny_pair(), replace(SPEAKING, draft=False, max_tokens=4))[-1].stats

    assert (stats.rounds, stats.accepted, stats.acceptance_length) == (0, [], None)
    assert stats.configuration.draft_model is None
    assert stats.configuration.draft_dtype is None
    assert stats.configuration.block_size == 1


@pytest.mark.parametrize("drafter", [True, False], ids=["drafter left out", "none"])
def test_copies_alone_say_the_same_and_name_no_drafter(drafter: bool) -> None:
    pair = replace(tiny_pair()) if drafter else replace(tiny_pair(), drafter=None)
    few = replace(SPEAKING, sampling=Sampling(2.0, logit_bias={70: 300.0, 71: 300.0}))
    plain = said(listen(pair, replace(few, draft=False, max_tokens=36)))
    copying = replace(few, draft=False, copy=True, block_size="auto", max_tokens=36)

    events = listen(pair, copying)

    stats = events[-1].stats
    assert said(events) == plain
    assert stats.rounds == stats.copied_rounds > 2
    assert stats.configuration.copies
    assert (stats.configuration.draft_model, stats.configuration.block_size) == (None, 1)
    assert any("measured what rounds cost" in note for note in stats.configuration.notes)


def test_a_reply_that_grows_beyond_what_was_measured_is_measured_in_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two rounds, here at 32 tokens; what that took is not taken for decoding."""
    monkeypatch.setattr("dflash_mlx.engine.costs._scale", lambda length: length // 32)
    pair = replace(tiny_pair())
    right, ages = pair.tuning.measure, list[int]()

    def slow(context: Context, *arguments: Any, **named: Any) -> float:
        ages.append(len(context.tokens))
        return right(context, *arguments, **named) and 3600.0

    monkeypatch.setattr(pair.tuning, "measure", slow)
    events = listen(pair, replace(SPEAKING, block_size="auto"))

    assert said(events) == truth()
    lengths = sorted(pair.tuning.costs(Chooser(SPEAKING.sampling)).measured)
    assert lengths == [len(PROMPT) - 1, min(age for age in ages if age >= 32)]
    assert events[-1].stats.decode_seconds < -3000
    assert "measured" in events[-1].stats.configuration.notes[-1]


def test_the_statistics_name_what_ran() -> None:
    stats = listen(tiny_pair(), replace(SPEAKING, block_size=3), ORACLE)[-1].stats

    assert stats.configuration.block_size == 3
    assert stats.configuration.draft_model == "tiny-drafter"
    assert set(stats.drafted) == {2, 1}
    assert stats.acceptance_length == 1 + sum(stats.accepted) / stats.rounds
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.reused_tokens == 0
    assert stats.prefill_seconds > 0
    assert stats.tokens_per_second == pytest.approx(23 / stats.decode_seconds)
    assert stats.peak_memory > 0


def test_what_goes_on_outside_the_models_is_not_counted_as_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes, drafts and reads are; the text, the caller and prefill are not."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def costing(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slower(*arguments: Any) -> Any:
            now[0] += seconds
            return function(*arguments)

        return slower

    pair, context = tiny_pair(), scripted(tiny_pair(), (2,))
    drafting = context.drafting
    assert drafting is not None
    monkeypatch.setattr(context.target, "forward", costing(100, context.target.forward))
    monkeypatch.setattr(context.target, "noted_forward", costing(5, context.target.noted_forward))
    monkeypatch.setattr(drafting, "propose", costing(1, drafting.propose))
    monkeypatch.setattr(Output, "take", costing(1000, Output.take))
    for event in stream(pair, context, PROMPT, replace(SPEAKING, block_size=4, max_tokens=7)):
        now[0] += 10_000
        stats = event.stats

    assert stats.rounds == 2
    assert stats.model_seconds == 2 * 5 + 1
    assert stats.decode_seconds == 2 * (5 + 1000 + 10_000) + 1


def test_the_figures_of_a_generation_follow_from_its_rounds() -> None:
    """Acceptance length is mean accepted + 1; by position, over the rounds that drafted so far."""
    stats = listen(tiny_pair(), replace(SPEAKING, block_size=4), (3, 0, 2))[-1].stats

    assert stats.accepted == [3, 0, 2, 3, 0, 2, 3, 0, 1]
    assert stats.drafted == [3, 3, 3, 3, 3, 3, 3, 2, 1]
    assert stats.acceptance_length == 14 / 9 + 1
    assert stats.acceptance_by_position == [6 / 9, 5 / 8, 3 / 7]


def test_drafting_shows_the_same_text() -> None:
    whole = tiny_pair().token_bytes.decode(truth())

    assert [text_of(listen(tiny_pair(), SPEAKING, by)) for by in (MIXED, None)] == [whole] * 2


def test_a_drafter_that_is_never_right_is_told_once() -> None:
    """Report 21: after 16 rounds; what `auto` blocks do about it is not to draft."""
    pair = tiny_pair()
    options = replace(SPEAKING, max_tokens=24, block_size=BLOCK)
    events = list(stream(pair, scripted(pair, ZERO), PROMPT, options))
    notes = events[-1].stats.configuration.notes
    assert sum("not one draft of 16 rounds" in note for note in notes) == 1
    assert events[-1].stats.rounds > 16
    assert said(events) == truth()[:24]


@pytest.mark.parametrize(("accepts", "tokens"), [((0,) * 15 + (1,), 24), (ZERO, 15)])
def test_one_right_draft_or_fewer_rounds_are_no_reason(
    accepts: tuple[int, ...], tokens: int
) -> None:
    pair = tiny_pair()
    options = replace(SPEAKING, max_tokens=tokens, block_size=BLOCK)
    stats = list(stream(pair, scripted(pair, accepts), PROMPT, options))[-1].stats
    assert not stats.fruitless
    assert not any("not one draft" in note for note in stats.configuration.notes)
