"""Everything at once: pairs that generate with every kernel simulated, and what it costs."""

from __future__ import annotations

import mlx.core as mx
import pytest
from simulator import Simulator
from simulator.stand_in import MetalKernel

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.racing import race_first
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.kernels.metal import Metal
from dflash_mlx.kernels.race import Referee
from tests.tiny import KEY, Script, run

from .pairs import drafting, target

pytestmark = pytest.mark.simulator
PROMPT = [5, 17, 99, 3, 120, 44, 61, 8, 30, 2] * 4
ACCEPTS = (0, 5, 2, 1)
KERNELS = {"block_matmul", "qkv_prologue", "block_attention", "accept", "draft_head"}


@pytest.mark.parametrize(
    ("family", "more", "ids"),
    [("qwen3", set(), None), ("qwen3_5", {"delta_replay"}, tuple(range(0, 160, 2)))],
)
def test_16_tokens_are_those_of_the_twins_and_every_kernel_ran(
    family: str, more: set[str], ids: tuple[int, ...] | None, simulator: Simulator
) -> None:
    truth, _, _ = run(target(family, None), PROMPT, 16)
    assert len(set(truth)) > 6
    metal = Metal(simulator.metal_kernel)
    ours = target(family, metal)
    script = Script(truth, len(PROMPT), ACCEPTS, drafting(ours, metal, ids))

    tokens, steps, _ = run(ours, PROMPT, 16, drafting=script, block_size=8)

    assert tokens == truth
    assert [step.accepted for step in steps[1:5]] == list(ACCEPTS)
    kernels = {name for name in metal.ran if "more than 32 rows" not in name}
    assert kernels == KERNELS | more, "prefill alone is MLX's own"
    assert distinct(metal) <= 24


def distinct(metal: Metal) -> int:
    """How many kernels a GPU would have to compile."""
    made = [kernel for kernel in metal.kernels.values() if isinstance(kernel, MetalKernel)]
    return len({variant.source.metal for kernel in made for variant in kernel.variants})


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9)])
@pytest.mark.parametrize("ids", [None, tuple(range(0, 160, 2))])
def test_ranked_drafts_are_those_of_whole_logits(
    sampling: Sampling, ids: tuple[int, ...] | None, counted_metal: Metal
) -> None:
    chooser = Chooser(sampling, KEY)
    taps = mx.random.normal((1, 9, 128), key=mx.random.key(3))
    drafts = []
    for metal in (None, counted_metal):
        at_work = drafting(target("qwen3", metal, mx.float32), metal, ids, mx.float32)
        at_work.extend(taps)
        drafts.append(at_work.propose(list(range(10)), 8, chooser).tolist())
    assert drafts[0] == drafts[1]
    assert "draft_head" in counted_metal.ran


def test_penalties_are_told_and_take_whole_logits(counted_metal: Metal) -> None:
    chooser = Chooser(Sampling(repetition_penalty=1.2), KEY)
    at_work = drafting(target("qwen3", counted_metal), counted_metal)
    at_work.extend(mx.zeros((1, 3, 128)))
    at_work.propose([1, 2, 3, 4], 4, chooser)
    assert counted_metal.ran["draft_head: twin, penalties"] == 1


def test_at_the_first_load_every_case_races_and_ours_give_mlxs_numbers(
    simulator: Simulator,
) -> None:
    """On a clock that stands still nobody is slower, so all that is right has won."""
    referee = Referee(lambda: 0.0, repeats=1)
    metal = Metal(simulator.metal_kernel, referee)
    made = target("qwen3_5", metal)
    race_first(Context(made, drafting(made, metal)), 4, 4)
    assert [case for case, verdict in referee.verdicts.items() if not verdict.won] == []
    raced = {case.split()[0].strip(",") for case in referee.verdicts}
    assert raced == KERNELS - {"accept"} | {"delta_replay"}
    rows = {case.split(", ")[-1] for case in referee.verdicts if case.startswith("block_matmul")}
    assert {"1 rows", "2 rows", "4 rows"} <= rows
