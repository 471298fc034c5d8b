"""After every commit the caches are those of a fresh prefill of the tokens that were kept."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import CacheList, ConcatenateKVCache, KVCache, RotatingKVCache

from dflash_mlx.target.caches import adapted, kind
from dflash_mlx.target.model import Target
from dflash_mlx.target.rollback import reaches, restore, rewind, save
from tests.families.models import FAMILIES, WINDOW, family_target
from tests.target.caches import append, contents, fresh
from tests.tiny import same_bits

TEXT = [(13 * i * i + 7 * i + 3) % 120 for i in range(600)]
WRONG = [121, 122, 123, 124, 125, 126]
ROWS = 6
AFTERWARDS = {"one row first": (1, 1, 3, 1), "k rows first": (4, 1, 2)}
KINDS = ("llama", "gemma3_text", "gpt_oss", "qwen3_5", "qwen3_next", "lfm2", "nemotron_h")


@pytest.mark.parametrize("afterwards", AFTERWARDS)
@pytest.mark.parametrize("kept", range(1, ROWS + 1))
@pytest.mark.parametrize("family", KINDS)
def test_a_commit_leaves_what_a_fresh_prefill_leaves(
    family: str, kept: int, afterwards: str
) -> None:
    """Whatever was accepted, and whatever rounds come after it; windows are full by then.

    Reports 1 and 2.
    """
    target = family_target(family)
    cache = target.make_cache()
    place = 2 * WINDOW + 3
    append(target, cache, TEXT[:place])
    block = [*TEXT[place : place + kept], *WRONG][:ROWS]

    append(target, cache, block, keep=kept)

    place += kept
    assert same_bits(contents(cache), fresh(target, TEXT[:place]))
    for rows in AFTERWARDS[afterwards]:
        append(target, cache, TEXT[place : place + rows])
        place += rows
    assert same_bits(contents(cache), fresh(target, TEXT[:place]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [0, 3, WINDOW - 1, WINDOW, 3 * WINDOW])
def test_an_exception_restores_what_was_before_the_round(family: str, place: int) -> None:
    target = family_target(family)
    cache = target.make_cache()
    if place:
        append(target, cache, TEXT[:place])
    before = contents(cache) if place else []

    with pytest.raises(KeyboardInterrupt), target.round(cache, ROWS) as turn:  # noqa: PT012
        mx.eval(turn.forward(mx.array([WRONG]))[0])
        turn.commit(2)
        raise KeyboardInterrupt

    assert same_bits(contents(cache) if place else [], before)
    assert reaches(cache, place)
    append(target, cache, TEXT[place : place + 3])
    assert same_bits(contents(cache), fresh(target, TEXT[: place + 3]))


def test_a_round_that_commits_nothing_is_undone() -> None:
    target = family_target("qwen3_5")
    cache = target.make_cache()
    append(target, cache, TEXT[:5])
    before = contents(cache)

    with target.round(cache, 2) as turn:
        turn.forward(mx.array([[1, 2]]))

    assert same_bits(contents(cache), before)


@pytest.mark.parametrize("rows", [-1, 0, 4])
def test_no_more_rows_can_be_kept_than_were_fed_and_no_fewer_than_one(rows: int) -> None:
    """A trim by a negative count would invent rows (report 17)."""
    target = family_target("llama")
    cache = target.make_cache()

    with (
        pytest.raises(ValueError, match=f"cannot keep {rows} rows of 3"),
        target.round(cache, 3) as turn,
    ):
        turn.commit(rows)

    assert cache[0].offset == 0


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3_text"])
def test_500_tokens_of_random_acceptance_do_not_drift(family: str) -> None:
    """Report 6: an error too small for one round would add up."""
    target = family_target(family)
    cache, prefilled = target.make_cache(), target.make_cache()
    place, rounds, done = 5, 0, 0
    append(target, cache, TEXT[:place])
    chance = random.Random(1)
    while place < 505:
        kept = chance.randint(1, ROWS)
        append(target, cache, [*TEXT[place : place + kept], *WRONG][:ROWS], keep=kept)
        place += kept
        rounds += 1
        if rounds % 10 == 0:
            append(target, prefilled, TEXT[done:place])
            done = place
            assert same_bits(contents(cache), contents(prefilled))

    assert rounds > 100


def test_a_replay_reads_no_projection_again() -> None:
    """Of a recurrent layer's weights only the recurrence's own are needed to keep some rows."""
    target = family_target("qwen3_5")
    projection = target.body.layers[0].linear_attn.in_proj_qkv
    weight = projection.weight
    cache = target.make_cache()
    try:
        with target.round(cache, 3) as turn:
            mx.eval(turn.forward(mx.array([TEXT[:3]]))[0])
            projection.weight = weight * float("nan")
            turn.commit(2)
    finally:
        projection.weight = weight

    assert same_bits(contents(cache), fresh(target, TEXT[:2]))


def test_layers_with_several_caches_go_back_together() -> None:
    """mlx-lm's CacheList: a recurrence and a window in one layer."""
    entry = CacheList(KVCache(), RotatingKVCache(max_size=8))
    cache = [adapted(entry)]
    rows = mx.random.normal([1, 1, 20, 4], key=mx.random.key(0))
    for part in entry.caches:
        part.update_and_fetch(rows[:, :, :15], rows[:, :, :15])
    before = contents(cache)
    saved = save(cache)
    assert saved is not None
    for part in entry.caches:
        part.update_and_fetch(rows[:, :, 15:], rows[:, :, 15:])

    rewind(cache, 15)

    assert same_bits(contents(cache), before)
    for part in entry.caches:
        part.update_and_fetch(rows[:, :, 15:], rows[:, :, 15:])
    restore(cache, saved)
    assert same_bits(contents(cache), before)


@pytest.mark.parametrize("entry", [RotatingKVCache(max_size=8, keep=4), ConcatenateKVCache()])
def test_an_unknown_kind_of_cache_is_named_and_never_rewound(
    entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(family_target("llama").model, family_target("llama").config)
    monkeypatch.setattr(target, "make_cache", lambda: [KVCache(), adapted(entry)])

    assert target.rollback_refusal() == f"its {type(entry).__name__} cannot be rolled back"
    assert not kind(entry).reaches(0)
    with pytest.raises(ValueError, match="cannot be rewound"):
        rewind([entry], 0)
