"""A draft vocabulary narrows what is drafted, and never what is said."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.backend import prepare
from dflash_mlx.drafter import load_drafter
from dflash_mlx.drafter.draft_vocab import FILE, read_draft_vocab, write_draft_vocab
from dflash_mlx.engine.decode import as_ints
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import load_pair
from dflash_mlx.target.draft_head import DraftHead
from tests.drafter.tiny import RAW, save
from tests.drafter.tiny import tiny_drafter as drafter_of_64
from tests.tiny import KEY, VOCABULARY, run, tiny_drafter, tiny_target
from tests.tiny_folders import write_tiny_pair

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
IDS = [2, 3, 5, 7, 11, 13, 64, 100, 101, 126]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=20, top_p=0.9),
    Sampling(temperature=0.7, repetition_penalty=1.3, logit_bias={7: 3.0, 8: 9.0}),
    Sampling(presence_penalty=0.6, frequency_penalty=0.4),
]


def narrow(family: str = "llama") -> BlockDrafting:
    target = tiny_target(family)
    return BlockDrafting(target, tiny_drafter(), target.head_rows(IDS))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])  # tied and untied
def test_the_tokens_are_those_of_plain_decoding(family: str, sampling: Sampling) -> None:
    target = tiny_target(family)
    plain, _, _ = run(target, PROMPT, 24, sampling=sampling)
    drafted, steps, _ = run(
        target, PROMPT, 24, drafting=narrow(family), block_size=5, sampling=sampling
    )
    assert drafted == plain
    assert sum(step.drafted for step in steps) > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_only_its_tokens_are_drafted(sampling: Sampling) -> None:
    drafting = narrow()
    drafting.extend(mx.random.normal((1, 7, 64), key=mx.random.key(1)))
    drafts = drafting.propose(PROMPT, 8, Chooser(sampling, KEY))
    assert set(as_ints(drafts)) <= set(IDS)
    assert drafts.dtype == mx.int32


@settings(max_examples=30)
@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40, unique=True))
def test_a_draft_is_the_choice_among_its_tokens(ids: list[int]) -> None:
    """As if all other tokens were impossible: with the noise of each token's own id."""
    logits = mx.random.normal((4, VOCABULARY), key=mx.random.key(len(ids)))
    hidden = nn.Linear(1, VOCABULARY, bias=False)
    head = DraftHead.of(hidden, hidden, ids, VOCABULARY)
    kept = mx.array(ids, mx.int32)
    masked = head.spread(logits[:, kept])
    for sampling in SAMPLINGS:
        chooser = Chooser(sampling, KEY)
        ours = chooser.draft(logits[:, kept], PROMPT, head)
        assert ours.tolist() == chooser.draft(masked, PROMPT).tolist()


@pytest.mark.parametrize("kind", ["linear", "biased", "embedding"])
@pytest.mark.parametrize("mode", [None, "affine", "mxfp4", "mxfp8"])
def test_rows_of_every_kind_of_head_are_its_own(kind: str, mode: str | None) -> None:
    mx.random.seed(4)
    tied = kind == "embedding"
    head: nn.Module = nn.Embedding(96, 64) if tied else nn.Linear(64, 96, bias=kind == "biased")
    if mode:
        head = head.to_quantized(group_size=32, bits=8 if mode == "mxfp8" else 4, mode=mode)
    whole = head.as_linear if tied else head
    ids, hidden = [5, 95, 0, 41], mx.random.normal((1, 3, 64))
    ours = DraftHead.of(head, whole, ids, 96).logits(hidden)
    assert mx.allclose(ours, whole(hidden)[..., mx.array(ids)], atol=1e-5)


def test_of_an_unknown_head_the_whole_is_computed() -> None:
    class Scaled(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return 3 * super().__call__(x)

    head, hidden = Scaled(8, 20), mx.ones((1, 2, 8))
    ours = DraftHead.of(head, head, [4, 2], 20).logits(hidden)
    assert mx.array_equal(ours, head(hidden)[..., mx.array([4, 2])])


def test_a_folder_keeps_its_draft_vocabulary(tmp_path: Path) -> None:
    folder = save(tmp_path, drafter_of_64(), RAW)
    assert load_drafter(folder).config.draft_vocab is None
    write_draft_vocab(folder, [9, 1, 33], "counted")
    assert load_drafter(folder).config.draft_vocab == (1, 9, 33)


@pytest.mark.parametrize("ids", [[], [1, 1], [-1, 2], [64], ["a"], [True], 7, None])
def test_what_is_no_vocabulary_is_refused(ids: object, tmp_path: Path) -> None:
    folder = save(tmp_path, drafter_of_64(), RAW)
    (folder / FILE).write_text(json.dumps({"ids": ids}))
    with pytest.raises(DFlashError, match="make it again"):
        load_drafter(folder)


def test_a_folder_without_one_has_none(tmp_path: Path) -> None:
    assert read_draft_vocab(tmp_path) is None


def test_a_pair_copies_the_rows_once(tmp_path: Path) -> None:
    folders = write_tiny_pair(tmp_path)
    write_draft_vocab(folders.drafter, IDS, "counted")
    names = PairFolders("tiny", folders.target, "drafter", folders.drafter)
    pair = load_pair(names, None, prepare(exact=True))
    first, second = pair.context().drafting, pair.context().drafting
    assert isinstance(first, BlockDrafting)
    assert isinstance(second, BlockDrafting)
    assert first._head is second._head is pair.draft_head
    assert pair.draft_head is not None
    assert pair.draft_head.ids.tolist() == IDS
