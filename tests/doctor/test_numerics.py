"""The checks of MLX's numbers find what is wrong, and nothing where all is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.doctor import numerics
from dflash_mlx.doctor.finding import Finding
from dflash_mlx.doctor.numerics import Op, difference_of_rows, error, numeric_findings, ops


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Op], Op]) -> list[Finding]:
    """The findings where one op is not what it should be."""
    first, *others = ops("cpu", small=True)
    monkeypatch.setattr(numerics, "ops", lambda device, small: [spoil(first), *others])
    return list(numeric_findings("cpu", small=True))


def test_mlx_on_this_machine_is_right_and_its_rows_are_their_own() -> None:
    findings = list(numeric_findings("cpu", small=True))
    assert [(f.check, f.status) for f in findings] == [
        ("op parity", "ok"),
        ("precision", "ok"),
        ("row-invariance", "ok"),
    ]
    assert len(findings[0].figures) == 9


def test_the_ops_of_a_round_are_all_looked_at() -> None:
    assert [op.name for op in ops("cpu", small=True)] == [
        "matmul 64 x 96, float32",
        "4-bit matmul 64 x 96, float32",
        "matmul by columns 64 x 96, float32",
        "narrowing matmul 64 x 96, float32",
        "attention, 4/2 heads of 32, 40 keys, float32",
        "our attention, 4/2 heads of 32, 40 keys, float32",
        "fused attention, 4/2 heads of 32, 40 keys, float32",
        "norm of 96",
        "fused norm of 96",
    ]


def test_garbage_is_wrong_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def garbage(op: Op) -> Op:
        return replace(op, call=lambda start, stop: op.call(start, stop) * 1.5)

    parity = spoiled(monkeypatch, garbage)[0]
    assert parity.status == "wrong"
    assert parity.words.startswith("garbage from matmul 64 x 96, float32 (off by 0.5)")


def test_what_is_not_a_number_is_garbage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(op: Op) -> Op:
        return replace(op, call=lambda start, stop: op.call(start, stop) * float("nan"))

    assert spoiled(monkeypatch, overflow)[0].status == "wrong"


def test_lost_bits_are_worth_knowing_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def eleven_bits(op: Op) -> Op:
        return replace(op, expected=op.expected + np.abs(op.expected).max() / 2**11)

    parity, precision, _ = spoiled(monkeypatch, eleven_bits)
    assert (parity.status, precision.status) == ("ok", "note")
    assert precision.words == "only about 11 bits are right in matmul 64 x 96, float32"
    assert "MLX_ENABLE_TF32=0" in precision.cure


def test_a_row_that_hangs_on_its_company_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaning(op: Op) -> Op:
        return replace(op, call=lambda a, b: op.call(a, b) * (1 + 1e-6 * (b - a > 1)))

    invariance = spoiled(monkeypatch, leaning)[2]
    assert (invariance.status, invariance.words) == (
        "note",
        "1 of 9 ops give a row other last bits in a block",
    )


def test_errors_are_shares_of_the_largest_value() -> None:
    rows = mx.ones((16, 2))
    op = Op("double", mx.float32, lambda a, b: rows[a:b] * 2, np.full((16, 2), 4.0))
    assert error(op, 8) == 0.5
    assert difference_of_rows(op, 8) == 0
