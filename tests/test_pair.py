"""What a pair is loaded from, and the sentences where its halves do not belong together."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from dflash_mlx.api import generate
from dflash_mlx.backend import prepare
from dflash_mlx.belonging import check_pair
from dflash_mlx.drafter import Drafter
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, default_sampling, load_pair
from dflash_mlx.target.model import Target
from tests.convert.tiny_models import convert
from tests.tiny import tiny_drafter, tiny_target
from tests.tiny_folders import TinyPair, tiny_pair, write_tiny_pair


@pytest.fixture
def folders(tmp_path: Path) -> TinyPair:
    """A tiny pair on disk, to be altered."""
    return write_tiny_pair(tmp_path)


def load(folders: TinyPair, dtype: str | None = None, draft: bool = True) -> Pair:
    """The pair in these folders."""
    names = PairFolders("target", folders.target)
    if draft:
        names = PairFolders("target", folders.target, "drafter", folders.drafter)
    return load_pair(names, dtype, prepare(exact=sys.platform == "linux"))


def alter(file: Path, **changes: Any) -> None:
    """Write other values into a JSON file, or a new one."""
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(values | changes))


class Altered:
    """A drafter of another config: the check looks at nothing else."""

    def __init__(self, **changes: Any) -> None:
        self.config = replace(tiny_drafter().config, **changes)


def check(target: Target, stop_tokens: tuple[int, ...] = (), **changes: Any) -> None:
    """Check a tiny target against a tiny drafter of another config."""
    check_pair(target, cast(Drafter, Altered(**changes)), frozenset(stop_tokens))


def test_halves_that_fit_are_a_pair() -> None:
    check(tiny_target())
    check(tiny_target(), num_target_layers=None, target_layer_ids=(0,))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "hidden_size",
            48,
            "the drafter was made for a hidden size of 48, the target's is 32."
            " Choose another --draft-model, or --no-draft.",
        ),
        (
            "num_target_layers",
            30,
            "the drafter was made for a number of target layers of 30, the target's is 2."
            " Choose another --draft-model, or --no-draft.",
        ),
        (
            "vocab_size",
            129,
            "the drafter's vocabulary has 129 tokens, the target's 128."
            " Choose another --draft-model, or --no-draft.",
        ),
    ],
)
def test_halves_that_do_not_fit_are_refused(name: str, value: int, sentence: str) -> None:
    changes: dict[str, Any] = {name: value}

    with pytest.raises(DFlashError) as refusal:
        check(tiny_target(), **changes)

    assert str(refusal.value) == f"Drafter and target are not a pair: {sentence}"


def test_a_mask_that_ends_the_text_is_refused() -> None:
    """Report 33: a mask id that was left at the end-of-text token drafts nothing of use."""
    with pytest.raises(DFlashError, match="mask token 127 ends the target's texts"):
        check(tiny_target(), stop_tokens=(3, 127))


def test_a_target_that_cannot_go_back_is_refused_and_told_what_to_do() -> None:
    class Stuck(Target):
        def rollback_refusal(self) -> str | None:
            return "its OddCache cannot be rolled back"

    target = tiny_target()

    with pytest.raises(DFlashError) as refusal:
        check(Stuck(target.model, target.config, target.tap_ids))

    assert str(refusal.value) == (
        "This target cannot draft: its OddCache cannot be rolled back. Use --no-draft."
    )


def test_loading_refuses_a_drafter_of_another_target(folders: TinyPair) -> None:
    alter(folders.drafter / "config.json", num_target_layers=36)

    with pytest.raises(DFlashError, match="number of target layers of 36, the target's is 2"):
        load(folders)


def test_loading_refuses_taps_beyond_the_target(folders: TinyPair) -> None:
    taps = {"mask_token_id": 259, "target_layer_ids": [0, 7]}
    alter(folders.drafter / "config.json", num_target_layers=None, dflash_config=taps)

    with pytest.raises(DFlashError, match=r"taps layers \[0, 7\], but the target has 2 layers"):
        load(folders)


def test_every_file_that_names_an_end_of_text_counts(folders: TinyPair) -> None:
    alter(folders.target / "config.json", eos_token_id=257)
    alter(folders.target / "generation_config.json", eos_token_id=[256, 300])

    assert load(folders).stop_tokens == {256, 257, 258, 300}


def test_a_pair_samples_as_its_generation_config_says(folders: TinyPair) -> None:
    alter(folders.target / "generation_config.json", temperature=0.6, top_p=0.9, do_sample=True)

    assert load(folders).defaults == Sampling(temperature=0.6, top_p=0.9)


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({}, Sampling()),
        ({"top_k": 20}, Sampling()),
        ({"do_sample": False, "temperature": 0.7}, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, Sampling(temperature=0.7, top_k=20)),
        (
            {"do_sample": True, "temperature": 1.0, "repetition_penalty": 1.1, "min_p": None},
            Sampling(temperature=1.0, repetition_penalty=1.1),
        ),
    ],
)
def test_where_nothing_says_how_to_sample_a_pair_is_greedy(
    config: dict[str, Any], sampling: Sampling
) -> None:
    assert default_sampling(config) == sampling


def test_a_pair_without_a_drafter_decodes_plainly(folders: TinyPair) -> None:
    pair = load(folders, draft=False)

    result = generate(pair, [40, 41, 42], max_tokens=6)

    assert result.tokens == generate(tiny_pair(), [40, 41, 42], max_tokens=6, draft=False).tokens
    assert (result.stats.rounds, result.stats.configuration.draft_model) == (0, None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_pair_may_be_loaded_in_another_dtype(folders: TinyPair, dtype: str) -> None:
    """Low precision changes the target's tokens, but drafting changes none of those."""
    pair = load(folders, dtype)
    plain = generate(pair, [40, 41, 42], max_tokens=8, draft=False)

    drafted = generate(pair, [40, 41, 42], max_tokens=8)

    assert pair.target.dtype == getattr(mx, dtype)
    assert drafted.stats.configuration.target_dtype == dtype
    assert drafted.stats.configuration.draft_dtype == dtype
    assert drafted.tokens == plain.tokens


def test_a_quantized_drafter_is_dequantized_where_a_cpu_computes(
    folders: TinyPair, tmp_path: Path
) -> None:
    """Its weights stay rounded, and the statistics say both."""
    plain = generate(load(folders), [40, 41, 42], max_tokens=8)
    quantized = convert(folders.drafter, tmp_path / "8bit", q_bits=8, q_group_size=32)

    pair = load(replace(folders, drafter=quantized))
    result = generate(pair, [40, 41, 42], max_tokens=8)

    assert pair.drafter is not None
    assert not any(hasattr(module, "bits") for _, module in pair.drafter.named_modules())
    told = result.stats.configuration.draft_dtype
    assert told == "float32 (8-bit weights, dequantized)"
    assert (result.tokens, result.stats.rounds > 0) == (plain.tokens, True)


def test_an_unknown_dtype_is_refused(folders: TinyPair) -> None:
    with pytest.raises(UsageError, match="dtype must be one of float32, bfloat16, float16; it is"):
        load(folders, "int8")


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (Options(), 8),
        (Options(block_size=8), 8),
        (Options(block_size=3), 3),
        (Options(block_size=1), 1),
        (Options(draft=False), 1),
        (Options(draft=False, block_size=99), 1),
    ],
)
def test_a_block_has_as_many_rows_as_asked_or_as_the_drafters(options: Options, rows: int) -> None:
    assert tiny_pair().block_size(options) == rows


@pytest.mark.parametrize(
    ("options", "drafter", "copies"),
    [
        (Options(block_size="auto"), True, True),
        (Options(block_size="auto", copy=True), True, True),
        (Options(block_size="auto", copy=False), True, False),
        (Options(block_size="auto", draft=False), True, False),
        (Options(block_size="auto", draft=False, copy=True), True, True),
        (Options(block_size="auto"), False, False),
        (Options(block_size="auto", copy=True), False, True),
        (Options(block_size=4, copy=True), True, False),
        (Options(block_size=1, copy=True), False, False),
    ],
)
def test_auto_copies_beside_a_drafter_and_alone_where_that_is_said(
    options: Options, drafter: bool, copies: bool
) -> None:
    pair = tiny_pair() if drafter else replace(tiny_pair(), drafter=None)

    assert pair.copies(options) is copies


def test_a_target_whose_caches_cannot_go_back_cannot_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody asks for by name is refused, and not left out."""
    pair = replace(tiny_pair(), drafter=None)
    refusal = "its OddCache cannot be rolled back"
    monkeypatch.setattr(Target, "rollback_refusal", lambda self: refusal)

    assert not pair.copies(Options(block_size="auto"))
    with pytest.raises(UsageError, match=f"cannot copy: {refusal}. Leave out --copy"):
        pair.copies(Options(block_size="auto", copy=True))


def test_a_block_larger_than_the_drafters_is_refused() -> None:
    """A drafter trained for 8 rows guesses badly beyond them; the reverse is fine."""
    with pytest.raises(UsageError) as refusal:
        tiny_pair().block_size(Options(block_size=9))

    assert str(refusal.value) == (
        "block_size 9 is more than the 8 rows that this drafter was trained for: choose 1 to 8."
    )


def test_messages_go_through_the_template() -> None:
    pair = tiny_pair()

    rendered = pair.render([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}])

    assert rendered == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert pair.encode("<|im_start|>ab") == [257, 64, 65]


def test_a_model_without_a_template_says_what_it_is_for(folders: TinyPair) -> None:
    alter(folders.target / "tokenizer_config.json", chat_template=None)

    with pytest.raises(UsageError, match=r"no chat template .*generate --ignore-chat-template"):
        load(folders).render([{"role": "user", "content": "hi"}])


def test_a_template_that_refuses_is_quoted(folders: TinyPair) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    alter(folders.target / "tokenizer_config.json", chat_template=template)

    with pytest.raises(UsageError, match="template refuses this: roles must alternate"):
        load(folders).render([{"role": "user", "content": "hi"}])
