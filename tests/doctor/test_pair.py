"""The pair at work: identity and costs, as findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_mlx.doctor import pair as checks
from dflash_mlx.doctor.pair import costs_told, identity_finding, pair_findings
from tests.tiny_folders import tiny_pair


def test_a_right_pair_is_fine_and_its_costs_are_told() -> None:
    identity, cost = pair_findings(tiny_pair(), 8)
    assert identity.words == "tiny: 2 answers are the same with 8 rows"
    assert (identity.status, cost.check) == ("ok", "cost of rounds")
    assert set(cost.figures["round_seconds"]) == {2, 4, 8}
    assert set(cost.figures["copy_seconds"]) == {2, 4, 8, 12, 16}
    assert cost.words.startswith("a token ")


def test_a_wrong_token_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks._reply
    monkeypatch.setattr(
        checks,
        "_reply",
        lambda pair, tokens, rows, limit: [
            token if rows == 1 or place != 3 else (token + 1) % 200
            for place, token in enumerate(right(pair, tokens, rows, limit))
        ],
    )
    finding = identity_finding(tiny_pair(), 6)
    assert finding.status == "wrong"
    assert "BUG: after 3 tokens" in finding.words
    assert "--no-draft" in finding.cure


def test_without_a_drafter_there_is_nothing_to_compare() -> None:
    [finding] = pair_findings(replace(tiny_pair(), drafter=None))
    assert finding.status == "note"


def test_where_a_row_costs_as_much_as_a_token_drafting_cannot_pay() -> None:
    dear = costs_told(0.1, {2: 0.21, 4: 0.45, 8: 0.9}, {16: 1.8})
    assert dear.status == "note"
    assert "drafting cannot pay" in dear.words
    cheap = costs_told(0.1, {2: 0.12, 4: 0.14, 8: 0.2}, {8: 0.16, 16: 0.24})
    assert cheap.status == "ok"
    assert cheap.words.endswith(
        "tokens that it must give: 2 rows 1.2, 4 rows 1.4, 8 rows 2.0;"
        " of a copy: 8 rows 1.6, 16 rows 2.4"
    )
