"""`--exact` on simulated kernels: one row and k rows are one thing, to the last bit."""

from __future__ import annotations

import pytest
from simulator import Simulator

from dflash_mlx.engine.exact import COUNTS, prove
from dflash_mlx.errors import DFlashError
from dflash_mlx.kernels.metal import MAX_ROWS, Metal
from dflash_mlx.kernels.race import Contest
from dflash_mlx.target.model import Target
from tests.tiny import Script, run

from .pairs import drafting, near_ties, target

pytestmark = pytest.mark.simulator
PROMPT = [(13 * i * i + 7 * i + 3) % 150 for i in range(12)]
FAMILIES = ("llama", "qwen3")
ACCEPTS = (0, 15, 7, 1, 12, 3)


class StockForOneRow(Metal):
    """As if MLX's own kernel had won the race at one row: fast, and not exact."""

    def serves(self, op: str, obstacle: str | None, contest: Contest | None = None) -> bool:
        alone = contest is not None and contest.case.endswith(" 1 rows")
        return super().serves(op, "MLX's is faster" if alone else obstacle)


def plain_and_drafted(made: Target, metal: Metal, count: int) -> tuple[list[int], list[int]]:
    """`count` tokens, plainly, and in blocks of 16 whose drafts know them and err by plan."""
    truth, _, _ = run(made, PROMPT, count)
    script = Script(truth, len(PROMPT), ACCEPTS, drafting(made, metal))
    tokens, _, _ = run(made, PROMPT, count, drafting=script, block_size=16)
    return truth, tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_64_tokens_are_equal_where_every_choice_is_a_near_tie(family: str, metal: Metal) -> None:
    truth, tokens = plain_and_drafted(near_ties(family, metal), metal, 64)
    assert len(set(truth)) > 16
    assert {token % 2 for token in truth} == {0, 1}
    assert tokens == truth


def test_the_ties_are_near_enough_to_tell(simulator: Simulator) -> None:
    """With one row by MLX's kernels and a block by ours, the same model says other tokens."""
    mixed = StockForOneRow(simulator.metal_kernel)
    truth, tokens = plain_and_drafted(near_ties("qwen3", mixed), mixed, 16)
    assert tokens != truth


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_is_proven(family: str, counted_metal: Metal) -> None:
    """By our own kernels, in every block and in as many single rows as the largest has."""
    made = target(family, counted_metal)
    prove(made)
    assert counted_metal.ran["block_attention"] >= made.num_layers * (MAX_ROWS + len(COUNTS))
    assert not any(":" in name for name in counted_metal.ran)


def test_what_depends_on_the_rows_is_refused_by_name(simulator: Simulator) -> None:
    with pytest.raises(DFlashError, match=r"layers\.0\.self_attn\S* gives other bits for 2 rows"):
        prove(target("qwen3", StockForOneRow(simulator.metal_kernel)))
