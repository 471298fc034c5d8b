"""docs/training.md says what the program does: its flags, its recipe, its format of data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dflash_mlx.training.conversations import read_conversations
from dflash_mlx.training.settings import STAGES, gather
from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
SHARED = {"model", "folder", "config", "dtype", "draft-model"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_flag_that_is_named_exists() -> None:
    known = {name.replace("_", "-") for stage in STAGES.values() for name in stage.known()}
    named = set(re.findall(r"--([a-z][a-z0-9-]*)", TEXT))
    assert named <= known | SHARED
    assert len(named) > 30


@pytest.mark.parametrize("stage", STAGES)
def test_every_flag_of_a_command_belongs_to_its_stage(stage: str) -> None:
    known = {name.replace("_", "-") for name in STAGES[stage].known()} | SHARED
    commands = re.findall(rf"train {stage}\b((?:[^\n]*\\\n)*[^\n]*)", "\n".join(blocks("sh")))
    assert commands
    for command in commands:
        assert set(re.findall(r"--([a-z][a-z0-9-]*)", command)) <= known


def test_the_recipe_is_one() -> None:
    [recipe] = blocks("yaml")
    sections = yaml.safe_load(recipe)
    assert sections.keys() == STAGES.keys()
    for name, section in sections.items():
        gather(STAGES[name], section)


def test_the_line_of_data_is_read(tmp_path: Path) -> None:
    [line] = blocks("json")
    (tmp_path / "talk.jsonl").write_text(line)
    [talk] = read_conversations(tmp_path / "talk.jsonl")
    assert talk.answers == [(2, 3)]
