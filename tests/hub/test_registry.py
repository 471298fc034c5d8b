"""The known pairs: any quantization finds its drafter, and nothing else does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.hub import pairs as module
from dflash_mlx.hub.fit import GIB, Machine
from dflash_mlx.hub.pairs import PairFolders, resolve_pair
from dflash_mlx.hub.registry import (
    PAIRS,
    KnownPair,
    best_pair,
    known_pair,
    pair_of_drafter,
    suggestion,
)
from dflash_mlx.hub.resolve import Resolved
from dflash_mlx.pair import load_pair
from tests.tiny_folders import write_tiny_pair


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_each_row_of_the_table_is_of_one_piece(pair: KnownPair) -> None:
    assert known_pair(pair.name) is pair
    assert known_pair(pair.model) is pair
    assert pair_of_drafter(pair.drafter) is pair
    assert known_pair(pair.drafter) is None
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", pair.drafter)
    assert 0 < pair.draft_parameters < pair.parameters


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B",
        "mlx-community/Qwen3-8B-4bit",
        "mlx-community/Qwen3-8B-8bit",
        "mlx-community/Qwen3-8B-bf16",
        "mlx-community/Qwen3-8B-4bit-DWQ-053125",
        "mlx-community/Qwen3-8B-mixed_3_6",
        "lmstudio-community/Qwen3-8B-MLX-4bit",
        "somebody/qwen3-8b-3.5bit",
        "somebody/Qwen3-8B-mxfp4",
        "Qwen3-8B-mlx-4bit",
        "/models/Qwen3-8B/",
    ],
)
def test_any_quantization_from_any_publisher_finds_the_drafter(name: str) -> None:
    found = known_pair(name)
    assert found is not None
    assert found.drafter == "z-lab/Qwen3-8B-DFlash-b16"


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B-Base",
        "Qwen/Qwen3-4B-Instruct-2507",
        "mlx-community/Qwen3-4B-Thinking-2507-4bit",
        "huihui-ai/Qwen3-8B-abliterated-4bit",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3.5-8B",
        "z-lab/Qwen3-8B-DFlash-b16",
        "mlx-community/Qwen3-8B-4bit-tuned",
        "4bit",
        "",
    ],
)
def test_other_weights_find_none_however_alike_their_name(name: str) -> None:
    assert known_pair(name) is None


def test_llama_is_found_by_both_of_its_names() -> None:
    names = ["meta-llama/Llama-3.1-8B-Instruct", "mlx-community/Meta-Llama-3.1-8B-Instruct-8bit"]
    assert len({known_pair(name) for name in names}) == 1


def test_a_converted_drafter_is_still_that_drafter() -> None:
    found = pair_of_drafter("Qwen3-8B-DFlash-b16-mlx-4bit")
    assert found is not None
    assert found.name == "Qwen3-8B"


# The best pair for a machine


@pytest.mark.parametrize(
    ("gib", "name"),
    [(4, None), (8, "Qwen3.5-4B"), (16, "Qwen3.5-9B"), (32, "Qwen3.8-27B")],
)
def test_the_best_pair_is_the_first_in_the_table_that_fits(gib: int, name: str | None) -> None:
    best = best_pair(Machine(gib * GIB, metal=True))
    assert (best and best.name) == name


def test_the_suggestion_names_the_pair_its_size_and_the_command_that_gets_it() -> None:
    line = suggestion(Machine(16 * GIB, metal=True))
    assert line is not None
    assert "Qwen3.5-9B is the best known pair" in line
    assert "about 7 GB" in line
    assert "`dflash-mlx models pull Qwen3.5-9B`" in line


def test_a_machine_that_holds_no_known_pair_gets_no_suggestion() -> None:
    assert suggestion(Machine(4 * GIB, metal=True)) is None


# Which drafter a model is paired with


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that can be had: any name resolves, unless it is in this list of missing ones."""
    missing: list[str] = []

    def resolve(
        name: str,
        role: str = "target",
        progress: module.SetupProgress | None = None,
        *,
        root: Path | None = None,
    ) -> Resolved:
        if name in missing:
            raise module.DFlashError(f"{name} cannot be had: go online.")
        if progress:
            progress("fetching", 1, 2)
        return Resolved(tmp_path, name, "hub")

    monkeypatch.setattr(module, "resolve", resolve)
    return missing


@pytest.mark.usefixtures("here")
def test_a_quantized_target_brings_its_drafter_and_both_tell_their_progress() -> None:
    told: list[str] = []
    pair = resolve_pair(
        "mlx-community/Qwen3-8B-4bit", progress=lambda stage, done, total: told.append(stage)
    )
    assert pair.draft_model == "z-lab/Qwen3-8B-DFlash-b16"
    assert pair.note is None
    assert told == ["fetching"] * 2


@pytest.mark.usefixtures("here")
def test_the_mode_that_a_drafter_was_trained_in_comes_along() -> None:
    asked = resolve_pair("somebody/my-qwen", "z-lab/Qwen3-8B-DFlash-b16")
    assert asked.thinking is False
    assert resolve_pair("mlx-community/Qwen3-4B-8bit").thinking is False
    assert resolve_pair("meta-llama/Llama-3.1-8B-Instruct").thinking is None


def test_plain_decoding_has_the_prompt_that_drafting_would_have(here: list[str]) -> None:
    assert resolve_pair("mlx-community/Qwen3-4B-8bit", None).thinking is False
    here.append("z-lab/Qwen3-4B-DFlash-b16")
    assert resolve_pair("mlx-community/Qwen3-4B-8bit").thinking is False
    assert resolve_pair("somebody/else-7B-4bit", None).thinking is None


@pytest.mark.usefixtures("here")
def test_an_unknown_model_decodes_plainly_and_says_so() -> None:
    pair = resolve_pair("somebody/else-7B-4bit")
    assert pair.draft_folder is None
    assert pair.note is not None
    assert pair.note.startswith(
        "decoding without a drafter: no drafter is known for somebody/else-7B-4bit"
    )


def test_a_known_drafter_that_cannot_be_had_leaves_plain_decoding_that_says_why(
    here: list[str],
) -> None:
    here.append("z-lab/Qwen3-8B-DFlash-b16")
    pair = resolve_pair("mlx-community/Qwen3-8B-4bit")
    assert pair.draft_folder is None
    assert (
        pair.note
        == "decoding without a drafter: z-lab/Qwen3-8B-DFlash-b16 cannot be had: go online."
    )


def test_the_same_drafter_asked_for_by_name_is_an_error(here: list[str]) -> None:
    here.append("z-lab/Qwen3-8B-DFlash-b16")
    with pytest.raises(module.DFlashError, match="cannot be had"):
        resolve_pair("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16")


@pytest.mark.parametrize(
    ("stated", "known", "thinking"), [(None, False, False), (True, False, True), (None, None, None)]
)
def test_what_a_drafters_folder_says_of_its_training_goes_before_the_table(
    stated: bool | None, known: bool | None, thinking: bool | None, tmp_path: Path
) -> None:
    folders = write_tiny_pair(tmp_path)
    if stated is not None:
        config = json.loads((folders.drafter / "config.json").read_text())
        config["enable_thinking"] = stated
        (folders.drafter / "config.json").write_text(json.dumps(config))
    names = PairFolders("t", folders.target, "d", folders.drafter, thinking=known)
    assert load_pair(names, None, prepare(exact=sys.platform == "linux")).thinking is thinking
