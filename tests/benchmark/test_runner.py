"""The order of answers, what happens to an arm that fails, and what is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_mlx.benchmark.runner import WARM_UP_TOKENS, Bench, Measured
from dflash_mlx.benchmark.sample import Asked, Sample
from dflash_mlx.benchmark.strata import Stratum
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError

from .fakes import ANSWER, FakeArm

WARM = Sampling(temperature=0.7)


def bench(arms: list[FakeArm], *strata: Stratum, runs: int = 1) -> Bench:
    kinds = strata or (Stratum("chat", ["one", "two", "three"], Sampling()),)
    return Bench(arms, kinds, lambda text: [len(text)], 20, runs, seed=5)


def measured(bench: Bench) -> Measured:
    result = Measured()
    bench.measure(result)
    return result


def test_arms_take_turns_on_each_prompt_in_an_order_that_turns_around() -> None:
    done = measured(bench([FakeArm("plain"), FakeArm("a"), FakeArm("b")]))
    assert [record.arm for record in done.records] == [
        *["plain", "a", "b"],
        *["b", "a", "plain"],
        *["plain", "a", "b"],
    ]
    assert [record.place for record in done.records] == list(range(9))


def test_the_first_answers_warm_up_and_count_for_nothing() -> None:
    arms = [FakeArm("plain"), FakeArm("a")]
    done = measured(bench(arms))
    assert list(done.warm_up) == ["plain", "a"]
    assert [asked.max_tokens for asked in arms[1].asked] == [WARM_UP_TOKENS, 20, 20, 20]
    assert len(done.records) == 6


def test_a_much_longer_prompt_is_warmed_up_for_too() -> None:
    strata = [Stratum(name, [text], Sampling()) for name, text in (("a", "w"), ("b", "w" * 50))]
    arms = [FakeArm("plain"), FakeArm("a")]
    done = measured(bench(arms, *strata, *strata))
    assert [(len(a.text), a.max_tokens) for a in arms[1].asked] == [
        *[(1, WARM_UP_TOKENS), (1, 20), (50, WARM_UP_TOKENS), (50, 20), (1, 20), (50, 20)],
    ]
    assert done.warm_up["a"] == ANSWER


def test_every_arm_is_asked_the_same_with_a_seed_for_each_prompt() -> None:
    arms = [FakeArm("plain"), FakeArm("a")]
    measured(bench(arms))
    plain = [asked for asked in arms[0].asked if asked.max_tokens == 20]
    assert plain == arms[1].asked[1:]
    assert [(a.text, a.tokens, a.seed) for a in plain] == [
        ("one", [3], 5),
        ("two", [3], 6),
        ("three", [5], 7),
    ]


def test_plain_decoding_is_probed_before_and_after_each_stratum() -> None:
    speeds = iter([4.0] * 4 + [2.0] * 50)

    def slower(asked: Asked, sample: Sample) -> Sample:
        return replace(sample, decode_seconds=4 / next(speeds))

    strata = [Stratum("chat", ["one"], Sampling()), Stratum("code", ["two"], Sampling())]
    done = measured(bench([FakeArm("plain", changes=slower)], *strata))
    assert done.plain_speeds == [4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (DFlashError("it broke."), "it broke."),
        (RuntimeError("[malloc] too much\nat line 3"), "RuntimeError: [malloc] too much"),
        (ValueError(), "ValueError: "),
    ],
)
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_an_arm_that_fails_is_left_out_and_what_all_said_stands(
    failure: Exception, words: str, answers: int
) -> None:
    """In its warm-up or later, and in whatever way: a model of mlx-lm, too, may raise anything."""
    arms = [FakeArm("plain"), FakeArm("bad", fails_at=answers, failure=failure), FakeArm("good")]
    done = measured(bench(arms))
    assert [r.arm for r in done.records].count("bad") == max(0, answers - 1)
    assert [r.arm for r in done.records].count("good") == 3
    assert done.failed == {"bad": words}


def test_nothing_goes_without_plain_decoding() -> None:
    with pytest.raises(DFlashError, match="it broke"):
        measured(bench([FakeArm("plain", fails_at=3), FakeArm("good")]))


def test_a_greedy_arm_is_not_asked_to_sample() -> None:
    strata = [Stratum("chat", ["one"], WARM), Stratum("chat-greedy", ["one"], Sampling())]
    done = measured(bench([FakeArm("plain"), FakeArm("peer", samples=False)], *strata))
    assert [r.stratum for r in done.records if r.arm == "peer"] == ["chat-greedy"]


def test_what_was_measured_stands_when_somebody_stops_it() -> None:
    def stop(asked: Asked, sample: Sample) -> Sample:
        if asked.text == "three":
            raise KeyboardInterrupt
        return sample

    result = Measured()
    with pytest.raises(KeyboardInterrupt):
        bench([FakeArm("plain", changes=stop)]).measure(result)
    assert [record.prompt for record in result.records] == ["one", "two"]


def test_speeds_leave_the_first_token_to_prefill() -> None:
    assert ANSWER.decode_speed == 2.0
    assert ANSWER.whole_speed == 2.0
    assert replace(ANSWER, generated=1).decode_speed is None


def test_a_loop_is_found_in_tokens_and_in_words() -> None:
    assert not ANSWER.looped
    assert replace(ANSWER, tokens=list(range(10)) * 4).looped
    assert replace(ANSWER, tokens=None, text="one two three four five six seven eight " * 4).looped
