"""A drafter to go on from, in whatever words its config says what it is."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from typer import Typer
from typer.testing import CliRunner

from dflash_mlx.commands.train.flags import flags_of
from dflash_mlx.errors import UsageError
from dflash_mlx.training.adopted import adopted_config
from dflash_mlx.training.architecture import make_drafter
from dflash_mlx.training.initial import drafter_weights
from dflash_mlx.training.run import Run
from dflash_mlx.training.settings import RunSettings
from tests.convert.tiny_models import convert
from tests.tiny_folders import MASK, tiny_pair, write_drafter
from tests.training.test_run import CORPUS


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A drafter of 1 layer, 2 heads, blocks of 8, taps 0 and 1."""
    write_drafter(tmp_path / "drafter")
    return tmp_path / "drafter"


def rewrite(drafter: Path, **changes: Any) -> None:
    """Change keys of the config; those that become None are left out."""
    path = drafter / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def adopted(drafter: Path, **settings: Any) -> dict[str, Any]:
    return adopted_config(RunSettings(init=str(drafter), **settings), tiny_pair().target)


def own(**more: Any) -> dict[str, Any]:
    return {"mask_token_id": MASK, "target_layer_ids": [0, 1], **more}


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"block_size": None, "dflash_config": own(block_size=4)}, 4),
        ({"block_size": None}, 16),
        ({"head_dim": None, "num_target_layers": None, "num_attention_heads": 9}, 8),
        ({"dflash_config": None, **own()}, 8),
    ],
    ids=["block size inside", "no block size", "copied dimensions", "ids at the top"],
)
def test_a_config_of_other_words_is_written_out(
    drafter: Path, tmp_path: Path, changes: dict[str, Any], rows: int
) -> None:
    rewrite(drafter, **changes)
    run = Run(
        tiny_pair(), RunSettings(init=str(drafter), steps=1), tmp_path / "run", CORPUS, "tiny"
    )
    assert run.config["block_size"] == rows
    assert run.config["num_target_layers"] == 2
    made = make_drafter(run.config).config
    assert (made.num_heads, made.head_dim, made.block_size) == (2, 16, rows)


def test_a_block_size_that_was_given_is_the_runs(drafter: Path) -> None:
    assert adopted(drafter, block_size=4)["block_size"] == 4
    rewrite(drafter, dflash_config=own(block_size=6))
    assert make_drafter(adopted(drafter, block_size=4)).config.block_size == 4
    assert adopted(drafter)["block_size"] == 6


def test_the_mode_of_the_conversations_is_the_drafters_from_now_on(
    drafter: Path, tmp_path: Path
) -> None:
    rewrite(drafter, enable_thinking=True)
    settings = RunSettings(init=str(drafter), steps=1)
    for said, served in ((None, True), (False, False)):
        corpus = replace(CORPUS, thinking=said)
        run = Run(tiny_pair(), settings, tmp_path / "run", corpus, "tiny")
        assert run.config["enable_thinking"] is served


@pytest.mark.parametrize(
    ("flag", "has", "other"),
    [
        ("layers", 1, 2),
        ("heads", 2, 4),
        ("kv_heads", 1, 2),
        ("head_dim", 16, 8),
        ("intermediate_size", 48, 64),
        ("taps", [0, 1], [1]),
        ("mask_token", MASK, 7),
    ],
)
def test_a_shape_that_the_weights_do_not_have_is_refused(
    drafter: Path, flag: str, has: Any, other: Any
) -> None:
    adopted(drafter, **{flag: has})
    with pytest.raises(UsageError, match=f"leave --{flag.replace('_', '-')} out"):
        adopted(drafter, **{flag: other})


def test_a_mask_that_texts_hold_is_refused_before_step_1(drafter: Path, tmp_path: Path) -> None:
    [stop] = tiny_pair().stop_tokens
    rewrite(drafter, dflash_config={**own(), "mask_token_id": stop})
    for settings in (RunSettings(init=str(drafter)), RunSettings(mask_token=stop)):
        with pytest.raises(UsageError, match=f"Token {stop} cannot be the mask"):
            Run(tiny_pair(), settings, tmp_path / "run", CORPUS, "tiny")


def test_a_quantized_drafter_is_dequantized_at_first(drafter: Path, tmp_path: Path) -> None:
    quantized = convert(drafter, tmp_path / "8bit", q_bits=8, q_group_size=32)
    config = adopted(quantized)
    assert config == adopted(drafter)
    made, target = make_drafter(config), tiny_pair().target
    rounded = drafter_weights(quantized, made, target, 0)
    exact = drafter_weights(drafter, made, target, 0)
    moved = {n: float(mx.abs(rounded[n] - exact[n]).max()) for n in exact}
    assert 0 < max(moved.values()) < 0.02


@pytest.mark.parametrize("flag", ["--init", "--init-from"])
def test_init_from_is_another_name_of_the_flag(flag: str) -> None:
    seen: dict[str, Any] = {}

    def call(**values: Any) -> None:
        seen.update(values)

    call.__signature__ = inspect.Signature(flags_of(RunSettings))  # type: ignore[attr-defined]
    app = Typer()
    app.command()(call)
    assert CliRunner().invoke(app, [flag, "target"]).exit_code == 0
    assert seen["init"] == "target"
