"""Where a packaging does not say what its rows predict, one prompt tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, load_pair
from tests.tiny_folders import MASK, TinyPair, write_tiny_pair

SAYS = 77
"""What the target answers to everything."""
ANCHOR, MASKS = (1.0, 0.0), (0.0, 1.0)
"""Which rows of the drafter see what leads to that answer."""


def channel(number: int, rows: int = 1) -> mx.array:
    """Rows [rows, 32] that have a 1 in one channel."""
    return mx.broadcast_to((mx.arange(32) == number).astype(mx.float32), (rows, 32))


def write_simple_pair(folder: Path, sees: tuple[float, float], **config: Any) -> TinyPair:
    """Models without attention or MLP: a token is a 1 in channel 0, the mask one in channel 1.

    The target says `SAYS` after both; of the drafter, only the rows in `sees` do.
    """
    pair = write_tiny_pair(folder)
    file = pair.target / "model.safetensors"
    weights: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    weights = {name: mx.zeros_like(w) if silent(name) else w for name, w in weights.items()}
    table = mx.concatenate([channel(0, MASK), channel(1), channel(0, 320 - MASK - 1)])
    head = mx.zeros((320, 32))
    head[SAYS] = (channel(0) + channel(1))[0]
    weights |= {"model.embed_tokens.weight": table, "lm_head.weight": head}
    weights["model.norm.weight"] = mx.ones((32,))
    mx.save_safetensors(str(file), weights, {"format": "mlx"})
    edit(pair.target / "config.json", tie_word_embeddings=False)

    file = pair.drafter / "model.safetensors"
    weights = mx.load(str(file))  # type: ignore[assignment]
    weights = {name: mx.zeros_like(w) if silent(name) else w for name, w in weights.items()}
    weights["norm.weight"] = mx.array([*sees] + [0.0] * 30)
    mx.save_safetensors(str(file), weights)
    edit(pair.drafter / "config.json", **config)
    return pair


def silent(name: str) -> bool:
    """Whether a tensor is what a sublayer ends with."""
    return "o_proj" in name or "down_proj" in name


def edit(path: Path, **changes: Any) -> None:
    """Change a config.json."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def loaded(folders: TinyPair) -> Pair:
    names = PairFolders("tiny", folders.target, "doubtful", folders.drafter, chosen=True)
    return load_pair(names, None, prepare(exact=True))


DOUBTFUL = [
    {"architectures": ["Qwen3DSparkModel"], "markov_rank": 0, "block_size": 7},
    {"architectures": ["DFlashDraftModel"], "markov_rank": 0, "block_size": 7},
]


@pytest.mark.parametrize("config", DOUBTFUL, ids=["named DSpark", "named DFlash"])
@pytest.mark.parametrize(
    ("sees", "from_anchor", "note"),
    [
        (ANCHOR, True, "read as anchor + j + 1: on one prompt an acceptance length of 2.00"),
        (MASKS, False, "read as anchor + j: on one prompt an acceptance length of 6.20"),
    ],
    ids=["from the anchor on", "behind the anchor"],
)
def test_the_reading_that_more_drafts_are_right_in_is_kept_and_said(
    tmp_path: Path, sees: tuple[float, float], from_anchor: bool, note: str, config: dict[str, Any]
) -> None:
    pair = loaded(write_simple_pair(tmp_path, sees, **config))
    assert pair.drafter is not None
    assert pair.drafter.config.drafts_from_anchor is from_anchor
    assert not pair.drafter.config.rows_in_doubt
    [line] = [line for line in pair.configuration.notes if "row j" in line]
    assert note in line
    assert line.endswith("against 1.00 otherwise")


@pytest.mark.parametrize(("config", "kept"), list(zip(DOUBTFUL, [True, False], strict=True)))
def test_where_both_do_equally_well_the_name_decides(
    tmp_path: Path, config: dict[str, Any], kept: bool
) -> None:
    pair = loaded(write_simple_pair(tmp_path, (0.0, 0.0), **config))
    assert pair.drafter is not None
    assert pair.drafter.config.drafts_from_anchor is kept


def test_seven_rows_give_seven_drafts(tmp_path: Path) -> None:
    """And as many rows as that are verified: the anchor's and theirs."""
    both = write_simple_pair(tmp_path, (1.0, 1.0), **DOUBTFUL[0])
    pair = loaded(both)
    options = Options(max_tokens=24)

    stats = list(stream(pair, pair.context(), pair.encode("abc"), options))[-1].stats

    assert stats.configuration.block_size == pair.block_size(options) == 8
    assert stats.drafted[0] == stats.accepted[0] == 7


def test_what_is_stated_is_not_tried(tmp_path: Path) -> None:
    pair = loaded(write_simple_pair(tmp_path, MASKS))
    assert not any("row j" in line for line in pair.configuration.notes)
