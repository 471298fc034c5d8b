"""Settings: what a file and flags may say, who wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_mlx.errors import UsageError
from dflash_mlx.training.settings import (
    STAGES,
    PrepareSettings,
    RunSettings,
    Stage,
    gather,
    read_recipe,
    to_json,
)


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file_and_the_file_over_what_was_noted(tmp_path: Path) -> None:
    file = read_recipe(recipe(tmp_path, "run:\n  layers: 3\n  anchors: 7\n"))
    settings = gather(
        RunSettings, {"layers": 1, "anchors": 1, "seed": 5}, file["run"], {"layers": 4}
    )
    assert (settings.layers, settings.anchors, settings.seed) == (4, 7, 5)


def test_all_stages_share_one_file(tmp_path: Path) -> None:
    text = "prepare:\n  turns: 2\nrun:\n  taps: [1, 2]\neval:\nexport:\n  bits: 8\n"
    with pytest.raises(UsageError, match="eval"):
        read_recipe(recipe(tmp_path, text))
    file = read_recipe(recipe(tmp_path, text.replace("eval:\n", "")))
    assert file == {"prepare": {"turns": 2}, "run": {"taps": [1, 2]}, "export": {"bits": 8}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run:\n  learning_rat: 1\n", "did you mean learning_rate"),
        ("runs:\n  layers: 1\n", "did you mean run"),
        ("run: 5\n", "section run"),
        ("- run\n", "one section a stage"),
        ("run: [\n", "not YAML"),
        ("export:\n  bits: 5\n", "bits must be one of 4, 8"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_recipe(recipe(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file .*none\.yaml"):
        read_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", "two"),
        ("layers", True),
        ("layers", 2.5),
        ("layers", 0),
        ("learning_rate", "fast"),
        ("keep_loops", 1),
        ("loss", "mean"),
        ("taps", ["a"]),
        ("init", 3),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        gather(RunSettings, {name: value})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), pytest.param(10**400, id="huge")]
)
def test_every_number_is_finite(value: float) -> None:
    for stage in STAGES.values():
        for name, (kind, _) in stage.known().items():
            if "float" in str(kind):
                with pytest.raises(UsageError, match=f"{name} must be a finite number"):
                    gather(stage, {name: value})


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        (PrepareSettings, ("long_share", "sampled", "heldout")),
        (RunSettings, ("alpha", "warmup", "frequent_share", "heldout")),
    ],
)
def test_a_share_is_at_most_the_whole(stage: type[Stage], names: tuple[str, ...]) -> None:
    for name in names:
        assert getattr(gather(stage, {name: 1}), name) == 1
        with pytest.raises(UsageError, match=rf"{name} must be 1 or less; it is 1\.5"):
            gather(stage, {name: 1.5})


def test_conversations_are_seen() -> None:
    with pytest.raises(UsageError, match=r"epochs must be 0\.01 or more; it is 0\."):
        gather(RunSettings, {"epochs": 0})


def test_an_unknown_setting_is_refused_from_code_too() -> None:
    with pytest.raises(UsageError, match="did you mean layers"):
        gather(RunSettings, {"layer": 1})


def test_values_become_their_types() -> None:
    settings = gather(RunSettings, {"learning_rate": 1, "data": "a.jsonl", "taps": [3]})
    assert isinstance(settings.learning_rate, float)
    assert settings.data == [Path("a.jsonl")]
    assert settings.taps == [3]


def test_settings_survive_a_file() -> None:
    settings = gather(PrepareSettings, {"prompts": ["a.jsonl"], "thinking": False})
    assert gather(PrepareSettings, to_json(settings)) == settings


@pytest.mark.parametrize("stage", STAGES)
def test_every_setting_has_a_word_of_help(stage: str) -> None:
    for name, (_, about) in STAGES[stage].known().items():
        assert about.text.endswith((".", ")")), name
