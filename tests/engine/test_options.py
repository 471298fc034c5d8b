"""Wrong options are refused where they are made, each in one sentence that says the range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.errors import UsageError


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or more; it is -0.1."),
        ({"temperature": math.inf}, "temperature must be 0 or more; it is inf."),
        ({"temperature": math.nan}, "temperature must be 0 or more; it is nan."),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1; it is 0.0."),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1; it is 1.01."),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1; it is nan."),
        ({"min_p": -0.01}, "min_p must be between 0 and 1; it is -0.01."),
        ({"min_p": 1.5}, "min_p must be between 0 and 1; it is 1.5."),
        ({"top_k": -1}, "top_k must be 0 (off) or more; it is -1."),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0; it is 0.0."),
        ({"repetition_context_size": 0}, "repetition_context_size must be 1 or more; it is 0."),
        ({"presence_penalty": math.inf}, "presence_penalty must be a finite number; it is inf."),
        ({"presence_context_size": -2}, "presence_context_size must be 1 or more; it is -2."),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be a finite number; it is nan."),
        ({"frequency_context_size": 0}, "frequency_context_size must be 1 or more; it is 0."),
    ],
)
def test_sampling_refuses_what_has_no_meaning(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Sampling(**wrong)

    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens must be 1 or more; it is 0."),
        ({"block_size": 0}, 'block_size must be 1 or more, or "auto"; it is 0.'),
        ({"seed": -1}, "seed must be from 0 to 2^64 - 1; it is -1."),
        ({"seed": 2**64}, "seed must be from 0 to 2^64 - 1; it is 18446744073709551616."),
        ({"stop": ("end", "")}, "A stop string must not be empty."),
    ],
)
def test_options_refuse_what_cannot_be_done(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Options(**wrong)

    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("kind", "edges"),
    [
        (
            Sampling,
            {"temperature": 0, "top_p": 1, "min_p": 0, "top_k": 0, "repetition_context_size": 1},
        ),
        (Sampling, {"temperature": 1e-6, "top_p": 1e-6, "min_p": 1, "repetition_penalty": 1e-6}),
        (Sampling, {"presence_penalty": -2, "frequency_penalty": -2, "logit_bias": {5: -math.inf}}),
        (Options, {"max_tokens": 1, "block_size": 1, "seed": 2**64 - 1}),
        (Options, {"block_size": "auto", "seed": 0}),
    ],
)
def test_the_edges_of_the_ranges_are_taken_as_they_are(kind: Any, edges: dict[str, Any]) -> None:
    made = kind(**edges)
    assert {name: getattr(made, name) for name in edges} == edges


def test_the_defaults_are_greedy_and_bare() -> None:
    assert Sampling().greedy
    assert not Sampling(temperature=0.01).greedy


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_a_bias_that_decides_everything_or_nothing_is_refused(bias: float) -> None:
    with pytest.raises(UsageError, match="logit_bias must be a number"):
        Sampling(logit_bias={5: bias})


def test_a_temperature_that_overflows_is_refused() -> None:
    with pytest.raises(UsageError, match="too little to divide by"):
        Sampling(temperature=1e-40)


def test_a_block_is_of_whole_rows() -> None:
    for wrong in (2.5, "many"):
        with pytest.raises(UsageError, match="block_size must be"):
            Options(block_size=wrong)  # type: ignore[arg-type]
