"""What a command tells while it makes a pair ready."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_mlx.api import load
from dflash_mlx.commands.loading import tune
from dflash_mlx.engine.options import Options, Sampling
from tests.tiny_folders import tiny_pair, write_tiny_pair

LINUX = sys.platform == "linux"


def test_measuring_rounds_is_said_in_a_line_and_done_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = replace(tiny_pair())

    tune(pair, Options(block_size="auto"))
    assert capsys.readouterr().err == (
        "measuring rounds on this machine, once (--block-size ROWS skips it)\n"
    )
    tune(pair, Options(block_size="auto"))
    assert capsys.readouterr().err == ""
    tune(pair, Options(Sampling(temperature=1.0), block_size="auto"))
    assert "measuring" in capsys.readouterr().err, "drawing costs more"


def test_so_it_is_for_copies_without_a_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    pair = replace(tiny_pair(), drafter=None)

    tune(pair, Options(block_size="auto", copy=True))
    assert capsys.readouterr().err.startswith("measuring rounds on this machine, once")
    tune(pair, Options(block_size="auto", copy=True))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "options", [Options(block_size=4), Options(), Options(block_size="auto", draft=False)]
)
def test_nothing_is_measured_that_is_not_asked_for(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(replace(tiny_pair()), options)
    tune(replace(tiny_pair(), drafter=None), Options(block_size="auto"))

    assert capsys.readouterr().err == ""


def test_costs_are_kept_below_the_cache_folder(tmp_path: Path) -> None:
    folders = write_tiny_pair(tmp_path / "pair")
    pair = load(folders.target, folders.drafter, exact=LINUX, cache_dir=tmp_path / "cache")

    assert pair.costs_folder == tmp_path / "cache" / "costs"
