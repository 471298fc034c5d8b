"""Do two halves belong together: other names are a warning, other tokens an error."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dflash_mlx.backend import prepare
from dflash_mlx.engine.generation import stream
from dflash_mlx.engine.options import Options
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, load_pair
from tests.tiny_folders import TinyPair, write_tiny_pair


@pytest.fixture
def folders(tmp_path: Path) -> TinyPair:
    return write_tiny_pair(tmp_path)


def load(
    folders: TinyPair, name: str = "target", drafter: str = "drafter", context: int | None = None
) -> Pair:
    names = PairFolders(name, folders.target, drafter, folders.drafter, context=context)
    return load_pair(names, None, prepare(exact=sys.platform == "linux"))


def shuffle(file: Path, count: int) -> None:
    """Let `count` tokens of a tokenizer change places with their neighbours."""
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    names = sorted(vocabulary, key=vocabulary.__getitem__)[:count]
    for i, name in enumerate(names):
        vocabulary[name] = (i + 1) % count if count > 1 else i
    file.write_text(json.dumps(content))
    Tokenizer.from_file(str(file))


def test_a_drafter_with_the_targets_tokenizer_is_a_pair(folders: TinyPair) -> None:
    shutil.copy(folders.target / "tokenizer.json", folders.drafter)
    assert load(folders).drafter is not None


@pytest.mark.parametrize(("count", "refused"), [(2, False), (20, True)])
def test_a_drafter_with_other_tokens_is_refused(
    folders: TinyPair, count: int, refused: bool
) -> None:
    """Report 39: all shapes fit, and every draft is wrong. A few may be spelled otherwise."""
    shutil.copy(folders.target / "tokenizer.json", folders.drafter)
    shuffle(folders.drafter / "tokenizer.json", count)
    if refused:
        with pytest.raises(DFlashError, match=r"not a pair: 20 of the 260 tokens"):
            load(folders)
    else:
        assert load(folders).drafter is not None


def test_a_tokenizer_that_cannot_be_read_is_named(folders: TinyPair) -> None:
    (folders.drafter / "tokenizer.json").write_text("{}")
    with pytest.raises(DFlashError, match=r"tokenizer.json cannot be read"):
        load(folders)


@pytest.mark.parametrize(
    ("target", "drafter", "warned"),
    [
        ("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16", False),
        ("x/Meta-Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", False),
        ("someone/Qwen3-8B-Finetuned", "z-lab/Qwen3-8B-DFlash-b16", True),
        ("anything", "my-drafter", False),
    ],
)
def test_another_name_is_a_warning(
    folders: TinyPair, target: str, drafter: str, warned: bool
) -> None:
    notes = load(folders, target, drafter).configuration.notes
    assert any("the drafter was made for" in note for note in notes) is warned


def test_vllm_speculators_name_their_target(folders: TinyPair) -> None:
    file = folders.drafter / "config.json"
    config = json.loads(file.read_text()) | {"target_model": "org/Other-8B"}
    file.write_text(json.dumps(config))
    notes = load(folders, "org/Mine-8B-4bit").configuration.notes
    assert (
        "the drafter was made for org/Other-8B: with org/Mine-8B-4bit fewer drafts may hit" in notes
    )
    assert not any(
        "made for" in note for note in load(folders, "x/Other-8B-4bit").configuration.notes
    )


def test_one_setting_of_the_context_holds_for_both_halves(folders: TinyPair) -> None:
    """Report 80: and what does not fit is said before anything is computed."""
    pair = load(folders, context=40)
    context, prompt = pair.context(), [70] * 30

    events = list(stream(pair, context, prompt, Options(max_tokens=200)))

    assert events[-1].stats.generated_tokens == 10
    assert context.drafting is not None
    assert context.drafting.length <= len(context.tokens) <= 40
    with pytest.raises(DFlashError, match="has 41 tokens and the model's context holds 40"):
        stream(pair, pair.context(), [70] * 41, Options())


def test_no_setting_makes_the_context_longer_than_the_models(folders: TinyPair) -> None:
    assert load(folders, context=10**6).target.context_limit == 1024
