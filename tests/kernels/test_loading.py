"""What a pair computes with is decided when it is loaded, and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.api import generate
from dflash_mlx.backend import Backend
from dflash_mlx.engine.exact import prove
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.kernels.metal import Metal, summary
from dflash_mlx.pair import Pair, load_pair
from dflash_mlx.target.model import Target
from tests.tiny_folders import tiny_pair, write_tiny_pair

from .pairs import CONFIGS, model_of

CPU = Backend("cpu", "reference", compiled=True, exact=False)
METAL = replace(CPU, device="metal", blas="accelerate")
"""Here MLX has no Metal: as on a Mac whose compiler refuses every kernel."""

pytestmark = pytest.mark.skipif(mx.metal.is_available(), reason="the kernels can be built here")


@pytest.fixture
def names(tmp_path: Path) -> PairFolders:
    written = write_tiny_pair(tmp_path / "pair")
    return PairFolders("tiny", written.target, "tiny-drafter", written.drafter)


def text_of(pair: Pair) -> tuple[list[int], str]:
    result = generate(pair, "hello", max_tokens=12, block_size=4)
    return result.tokens, result.stats.configuration.kernels


def test_where_no_kernel_can_be_built_a_pair_generates_as_ever(
    names: PairFolders, tmp_path: Path
) -> None:
    plain, said = text_of(load_pair(names, "float32", CPU))
    assert said == "stock MLX"
    pair = load_pair(names, "float32", METAL, costs_folder=tmp_path / "costs")
    assert text_of(pair) == (plain, "stock MLX")
    assert list((tmp_path / "costs").glob("kernels-*.json")), "the verdicts are kept"
    assert pair.target.metal is not None
    ran = pair.target.metal.ran
    assert all(": twin, " in name for name in ran)
    assert any("cannot run: [metal_kernel] No Metal back-end" in name for name in ran)


def test_exact_is_refused_where_no_kernel_can_be_built(names: PairFolders) -> None:
    with pytest.raises(DFlashError, match=r"a kernel cannot run .*Metal.*Leave the flag out"):
        load_pair(names, "float32", replace(METAL, exact=True))


def test_exact_is_refused_by_name_where_it_cannot_be_kept() -> None:
    made = Target(model_of("qwen3_5", mx.float32), CONFIGS["qwen3_5"], (0, 1), metal=Metal())
    with pytest.raises(DFlashError, match=r"qwen3_5 is not among dense Llama and Qwen3"):
        prove(made)
    with pytest.raises(DFlashError, match="it needs our kernels"):
        prove(tiny_pair().target)
    made = Target(model_of("qwen3", mx.float32), CONFIGS["qwen3"], (0, 1), metal=Metal())
    with pytest.raises(DFlashError, match="a block of 40 rows is more than our kernels take"):
        prove(made, 40)
    made = Target(model_of("qwen3", mx.float32), CONFIGS["qwen3"], (0, 1), 8, Metal())
    with pytest.raises(DFlashError, match="no kernel serves keys and values in --kv-bits"):
        prove(made)


def test_the_summary_names_kernels_and_what_stayed_stock() -> None:
    ran = {"accept": 3, "block_matmul": 9, "block_attention: twin, a QuantizedKVCache": 2}
    told = "kernels accept block_matmul; block_attention by stock MLX, a QuantizedKVCache"
    assert summary(ran, ["SwitchLinear"]) == f"{told}; SwitchLinear by stock MLX"
    assert summary({"block_matmul: twin, more than 32 rows": 4}) == "stock MLX"
    assert summary({"accept": 1, "block_matmul: twin, more than 32 rows": 4}) == "kernels accept"


def test_kernels_may_be_left_out_and_then_nothing_races(names: PairFolders, tmp_path: Path) -> None:
    pair = load_pair(names, "float32", METAL, costs_folder=tmp_path, own_kernels=False)
    assert pair.target.metal is None
    assert not list(tmp_path.glob("kernels-*"))
    with pytest.raises(DFlashError, match="it needs our kernels"):
        load_pair(names, "float32", replace(METAL, exact=True), own_kernels=False)


def test_costs_are_of_one_kind_of_cache_and_of_one_kind_of_kernels(tmp_path: Path) -> None:
    """Else a run with --no-kernels or --kv-bits would choose blocks by what rounds cost without."""
    files = set()
    for metal, kv_bits in ((None, None), (Metal(), None), (None, 8), (None, 4)):
        target = Target(model_of("qwen3", mx.float32), CONFIGS["qwen3"], (0, 1), kv_bits, metal)
        pair = replace(tiny_pair(), target=target, costs_folder=tmp_path)
        files.add(pair.tuning._file(Chooser(Sampling()), drafts=True))

    assert len(files) == 4
