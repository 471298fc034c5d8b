"""What a conversion cost: the perplexity of a short text, before and after (report 52)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.convert import trial
from dflash_mlx.convert.trial import perplexity
from dflash_mlx.hub.fit import GIB, Machine
from tests.convert.tiny_models import convert, write_model

FIGURE = r"\d+\.\d\d"


class Fortune(nn.Module):
    """A model that gives every next token of `ids` a head start of `nats`, among 50 tokens."""

    def __init__(self, ids: list[int], nats: float) -> None:
        super().__init__()
        self._next, self._nats = mx.array([[*ids[1:], 0]]), nats

    def __call__(self, ids: mx.array) -> mx.array:
        return self._nats * (mx.arange(50) == self._next[..., None]).astype(mx.bfloat16)


@pytest.mark.parametrize(("nats", "expected"), [(0.0, 50.0), (40.0, 1.0), (2.0, 7.631)])
def test_perplexity_is_the_number_of_tokens_that_it_hesitates_between(
    nats: float, expected: float
) -> None:
    """exp(-log(e^2 / (e^2 + 49))) is 7.631."""
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    assert perplexity(Fortune(ids, nats), ids) == pytest.approx(expected, rel=1e-3)


def figures(printed: str) -> str:
    (line,) = (line for line in printed.splitlines() if line.startswith("perplexity"))
    return line.removeprefix("perplexity").strip()


def test_the_perplexity_before_and_after_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "source")
    convert(source, tmp_path / "whole")
    alone = re.fullmatch(f"({FIGURE}) on a short text", figures(capsys.readouterr().out))
    assert alone
    changes = {}
    for bits in (2, 8):
        convert(source, tmp_path / str(bits), q_bits=bits)
        told = figures(capsys.readouterr().out)
        pattern = rf"({FIGURE}) -> ({FIGURE}) on a short text \(([+-]\d+\.\d)%\)"
        found = re.fullmatch(pattern, told)
        assert found, told
        before, after, change = map(float, found.groups())
        assert before == float(alone[1])
        assert change == pytest.approx(100 * (after / before - 1), abs=0.1)
        changes[bits] = abs(change)
    assert changes[8] < changes[2]


def test_an_original_that_does_not_fit_is_not_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        pytest.fail("it was loaded")

    monkeypatch.setattr(trial, "this_machine", lambda: Machine(GIB, metal=False))
    monkeypatch.setattr(trial, "open_target", refuse)
    convert(write_model(tmp_path / "source"), tmp_path / "ours", quantize=True)
    told = figures(capsys.readouterr().out)
    assert re.fullmatch(f"{FIGURE} on a short text; the original does not fit in memory, .*", told)
