"""The public functions, as a program would call them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import mlx.core as mx
import pytest

import dflash_mlx
from dflash_mlx import Event, Result, UsageError, generate, stream_generate
from dflash_mlx.backend import prepare
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import load_pair
from tests.tiny_folders import LETTERS, tiny_pair, write_tiny_pair

MESSAGES = [{"role": "user", "content": "What is gravity?"}]
GREEDY: dict[str, Any] = {"logit_bias": dict.fromkeys(LETTERS, 30.0), "frequency_penalty": 2.0}
SEEDED: dict[str, Any] = {
    "logit_bias": dict.fromkeys(LETTERS, 200.0),
    "temperature": 8.0,
    "top_k": 20,
    "seed": 7,
}
"""So hot that drafter and target often agree by the noise that they share."""


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("block_size", [2, 4, 8])
def test_drafting_changes_no_token_and_no_text(block_size: int, sampling: dict[str, Any]) -> None:
    plain = generate(tiny_pair(), MESSAGES, draft=False, max_tokens=20, **sampling)

    drafted = generate(tiny_pair(), MESSAGES, block_size=block_size, max_tokens=20, **sampling)

    assert drafted.tokens == plain.tokens
    assert drafted.text == plain.text
    assert drafted.finish_reason == plain.finish_reason == "length"
    assert drafted.stats.rounds > plain.stats.rounds == 0
    assert len(set(plain.tokens)) > 4, "a target that repeats itself proves nothing"


def test_a_sampled_reply_sees_full_partial_and_no_acceptance() -> None:
    """So the identity above was put to the test by the pair's own drafter."""
    stats = generate(tiny_pair(), MESSAGES, block_size=4, max_tokens=60, **SEEDED).stats

    assert {0, 3} < set(stats.accepted)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_chosen_blocks_change_no_token(sampling: dict[str, Any]) -> None:
    """As is the default. Only the first of two generations measures what rounds cost."""
    pair = replace(tiny_pair())
    plain = generate(pair, MESSAGES, draft=False, max_tokens=60, **sampling)
    first, second = (generate(pair, MESSAGES, max_tokens=60, **sampling) for _ in range(2))

    assert first.tokens == second.tokens == plain.tokens
    assert first.text == second.text == plain.text
    notes = [" ".join(result.stats.configuration.notes) for result in (first, second)]
    assert ["measured what rounds cost" in text for text in notes] == [True, False]
    assert (first.stats.configuration.auto, plain.stats.configuration.auto) == (True, False)
    assert first.stats.rows is not None
    assert first.stats.plain_steps + first.stats.rounds < 60


def test_the_host_waits_for_the_device_once_a_round() -> None:
    for rows in (1, 4, "auto"):
        stats = generate(tiny_pair(), MESSAGES, block_size=rows, max_tokens=20, **SEEDED).stats
        assert stats.host_reads == 1 + stats.rounds + stats.plain_steps

    def same(tokens: Any, logits: Any) -> Any:
        return logits

    stats = generate(tiny_pair(), MESSAGES, logits_processors=[same], max_tokens=9).stats
    assert stats.host_reads > 9, "a processor runs on the host, token by token"


def test_one_event_a_round_and_they_add_up_to_the_result() -> None:
    arguments: dict[str, Any] = {"max_tokens": 20, "block_size": 4, **SEEDED}
    events = list(stream_generate(tiny_pair(), MESSAGES, **arguments))
    result = generate(tiny_pair(), MESSAGES, **arguments)

    assert all(isinstance(event, Event) for event in events)
    assert isinstance(result, Result)
    assert [token for event in events for token in event.tokens] == result.tokens
    assert "".join(event.text for event in events) == result.text
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason == result.finish_reason == "length"
    assert [event.accepted for event in events if event.accepted is not None] == (
        result.stats.accepted
    )


def test_the_same_seed_repeats_and_another_does_not() -> None:
    def reply(seed: int) -> list[int]:
        return generate(tiny_pair(), MESSAGES, max_tokens=8, **(SEEDED | {"seed": seed})).tokens

    assert reply(1) == reply(1) != reply(2)


def test_a_string_is_a_raw_prompt_and_messages_go_through_the_template() -> None:
    pair = tiny_pair()
    rendered = pair.render(MESSAGES)
    by_messages = generate(pair, MESSAGES, max_tokens=5, **GREEDY)

    assert generate(pair, rendered, max_tokens=5, **GREEDY).tokens == by_messages.tokens
    assert generate(pair, pair.encode(rendered), max_tokens=5, **GREEDY).tokens == (
        by_messages.tokens
    )
    raw = generate(pair, "What is gravity?", max_tokens=5, **GREEDY)
    assert raw.stats.prompt_tokens == len("What is gravity?")


@pytest.mark.parametrize("prompt", ["", []], ids=["no text", "no tokens"])
def test_an_empty_prompt_is_refused(prompt: str | list[int]) -> None:
    with pytest.raises(DFlashError, match="The prompt is empty"):
        stream_generate(tiny_pair(), prompt)


@pytest.mark.parametrize("prompt", [["hi", "there"], [1, "hi"], [MESSAGES[0], 5], [1.5]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(UsageError, match="A prompt is a text, a list of token ids or a list of"):
        stream_generate(tiny_pair(), prompt)


def test_an_unknown_keyword_is_an_error_not_ignored() -> None:
    """Report 11: what is accepted is honoured."""
    with pytest.raises(TypeError, match="temprature"):
        generate(tiny_pair(), MESSAGES, temprature=0.5)
    with pytest.raises(TypeError, match="max_new_tokens"):
        stream_generate(tiny_pair(), MESSAGES, max_new_tokens=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "wrong", [{"top_p": 0.0}, {"temperature": -1.0}, {"max_tokens": 0}, {"block_size": 9}]
)
def test_wrong_values_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} "):
        stream_generate(tiny_pair(), MESSAGES, **wrong)


def test_every_sampling_argument_reaches_the_choice() -> None:
    """Each changes a reply that is the same without it."""
    base: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "draft": False}
    without = generate(tiny_pair(), MESSAGES, **base).tokens
    for argument in (
        {"temperature": 0.0},
        {"top_p": 0.1},
        {"min_p": 0.9},
        {"top_k": 1},
        {"repetition_penalty": 5.0},
        {"presence_penalty": 9.0},
        {"frequency_penalty": 9.0},
        {"logit_bias": {77: 50.0}},
        {"seed": 4},
    ):
        assert generate(tiny_pair(), MESSAGES, **(base | argument)).tokens != without, argument


def test_a_single_stop_string_need_not_be_in_a_list() -> None:
    whole = generate(tiny_pair(), MESSAGES, max_tokens=20, **SEEDED).text
    place = next(i for i in range(3, 18) if set(whole[i : i + 3]) & set(whole[:i]))
    stop = whole[place : place + 3]

    one = generate(tiny_pair(), MESSAGES, max_tokens=20, stop=stop, **SEEDED)

    assert one.text == whole[: whole.index(stop)]
    assert one.finish_reason == "stop"
    many = generate(tiny_pair(), MESSAGES, max_tokens=20, stop=["?!", stop], **SEEDED)
    assert many.text == one.text


def test_processors_see_the_tokens_and_change_the_logits() -> None:
    seen: list[int] = []

    def only_42(tokens: Sequence[int], logits: mx.array) -> mx.array:
        seen.append(len(tokens))
        return logits + 100 * (mx.arange(logits.size) == 42)

    result = generate(tiny_pair(), [1, 2, 3], max_tokens=4, logits_processors=[only_42])

    assert result.tokens == [42] * 4
    assert seen == [3, 4, 5, 6]


def test_prefill_tells_its_progress() -> None:
    told: list[tuple[int, int]] = []

    next(iter(stream_generate(tiny_pair(), [5] * 30, progress=lambda *done: told.append(done))))

    assert told[-1] == (29, 29)


def test_any_thread_may_generate(tmp_path: Path) -> None:
    """Report 104: whatever loading leaves lazy would belong to the stream of the main thread."""
    folders = write_tiny_pair(tmp_path)
    set_rope(folders.target, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0})
    set_rope(folders.drafter, {"rope_type": "yarn", "factor": 4.0})
    names = PairFolders("tiny", folders.target, "tiny-drafter", folders.drafter)
    pair = load_pair(names, None, prepare(exact=sys.platform == "linux"))
    replies: list[list[int]] = []

    def work() -> None:
        replies.append(generate(pair, MESSAGES, max_tokens=8, **SEEDED).tokens)

    for _ in range(2):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    work()

    assert len(replies) == 3
    assert replies[0] == replies[1] == replies[2]


def set_rope(folder: Path, scaling: dict[str, Any]) -> None:
    """Give the model in `folder` another rope."""
    file = folder / "config.json"
    more = {"high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_scaling": more | scaling}))


def test_the_package_has_the_names_that_it_promises() -> None:
    for name in dflash_mlx.__all__:
        assert getattr(dflash_mlx, name) is not None
    assert dir(dflash_mlx) == sorted(dflash_mlx.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Pear'"):
        _ = dflash_mlx.Pear
