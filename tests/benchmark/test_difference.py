"""Where two answers part, and whether rounding explains it, on a tiny pair."""

from __future__ import annotations

import pytest

from dflash_mlx.api import generate
from dflash_mlx.benchmark.difference import Difference, explain, next_logits
from dflash_mlx.pair import Pair
from tests.tiny_folders import tiny_pair

PROMPT = [257, 72, 105]


def greedy(pair: Pair, tokens: int) -> list[int]:
    """What plain decoding says."""
    return list(generate(pair, PROMPT, max_tokens=tokens, draft=False, temperature=0.0).tokens)


@pytest.mark.parametrize(
    ("margin", "noise", "verdict"),
    [(0.0, 0.0, "tie"), (0.1, 0.06, "tie"), (0.1, 0.04, "BUG"), (3.0, 0.1, "BUG")],
)
def test_a_difference_is_a_tie_where_rounding_of_both_logits_explains_it(
    margin: float, noise: float, verdict: str
) -> None:
    difference = Difference(3, "a", "b", margin, margin, noise)
    assert difference.verdict == verdict
    assert str(difference).startswith(f"{verdict}: after 3 tokens 'a' became 'b'")


def test_a_wrong_token_is_a_bug_with_its_place_and_the_margin_of_the_logits() -> None:
    pair = tiny_pair()
    plain = greedy(pair, 8)
    wrong = [*plain[:5], (plain[5] + 1) % 256, *plain[6:]]
    found = explain(pair, PROMPT, plain, wrong, rows=4)
    assert found.place == 5
    assert found.verdict == "BUG"
    logits = next_logits(pair, PROMPT + plain[:5], 1)
    assert found.margin == pytest.approx(abs(logits[plain[5]] - logits[wrong[5]]).item())
    assert 0 < found.second <= found.margin
    assert found.noise < 0.01


def test_a_reply_that_ends_too_early_is_a_bug() -> None:
    pair = tiny_pair()
    plain = greedy(pair, 8)
    found = explain(pair, PROMPT, plain, plain[:6], rows=4)
    assert (found.place, found.drafted, found.verdict) == (6, "the end", "BUG")


def test_logits_after_a_block_are_those_after_single_rows_but_for_rounding() -> None:
    pair = tiny_pair()
    alone = next_logits(pair, PROMPT, 1)
    for rows in (2, 3, 8):
        assert float(abs(next_logits(pair, PROMPT, rows) - alone).max()) < 0.01
