"""What a conversation keeps between calls: reuse, chunks of prefill, and what they cost."""

from __future__ import annotations

import time
from itertools import cycle

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from dflash_mlx.engine.blocks import FixedBlocks, Plan
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.decode import decode
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.target.model import Target
from tests.tiny import (
    Passes,
    cached_rows,
    drafter_rows,
    random_drafting,
    randomize,
    run,
    same_bits,
    tiny_target,
)

TARGET = tiny_target("llama")
LONG = [(11 * i + 5) % 120 for i in range(70)]
SHORT = [5, 17, 99]


def equals_a_fresh_prefill(context: Context, window: int | None = None) -> bool:
    """Whether both caches are what a prefill of the context's tokens alone would give."""
    drafting = random_drafting(TARGET, window)
    fresh = Context(TARGET, drafting)
    fresh.prefill(context.tokens, draft=True)
    return same_bits(cached_rows(context), cached_rows(fresh)) and same_bits(
        drafter_rows(context.drafting),  # type: ignore[arg-type]
        drafter_rows(drafting),
    )


@pytest.mark.parametrize("length", [63, 64, 65])
def test_the_drafter_hears_of_every_chunk(length: int) -> None:
    """Report 29: the first drafts are the same however the prompt was cut."""
    prompt = LONG[:length]
    drafts, rows = [], []
    for chunk in (length, 64, 7, 1):
        drafting = random_drafting(TARGET)
        context = Context(TARGET, drafting, chunk=512)
        for start in range(0, length, chunk):
            context.prefill(prompt[start : start + chunk], draft=True)
        assert drafting.length == length
        drafts.append(drafting.propose([*prompt, 3], 16, Chooser(Sampling())).tolist())
        rows.append(drafter_rows(drafting))

    assert drafts == [drafts[0]] * 4
    assert all(same_bits(one, rows[0]) for one in rows)


def test_prefill_reports_every_chunk_up_to_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    context = Context(TARGET, None, chunk=8)

    context.prefill(LONG, draft=False, progress=lambda done, total: seen.append((done, total)))

    done = [place for place, _ in seen]
    assert done == sorted(set(done))
    assert done[0] == 8
    assert seen[-1] == (70, 70)
    assert {total for _, total in seen} == {70}


def test_chunks_grow_on_a_fast_machine_and_shrink_on_a_slow_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each aims at half a second, so that Ctrl-C is answered soon; 16 rows are the least."""
    now, pace = 0.0, 0.001

    def clock() -> float:
        nonlocal now
        now += pace
        return now

    monkeypatch.setattr(time, "perf_counter", clock)
    seen: list[int] = []
    context = Context(TARGET, None, chunk=4)
    context.prefill(LONG[:28], draft=False, progress=lambda done, _: seen.append(done))
    pace = 5.0
    context.prefill(LONG[:70], draft=False, progress=lambda done, _: seen.append(done))

    assert seen == [4, 12, 28, 32, 48, 64, 70]


@pytest.mark.parametrize("window", [None, 8], ids=["full drafter", "sliding drafter"])
def test_long_then_short_then_long_on_one_context_equals_fresh_ones(window: int | None) -> None:
    """Report 16: nothing of an earlier request survives in positions or counters."""
    context = Context(TARGET, random_drafting(TARGET, window))
    for prompt in (LONG[:40], SHORT, LONG[:40], [*LONG[:20], 1, 2]):
        fresh = Context(TARGET, random_drafting(TARGET, window))
        expected, fresh_steps, _ = run(TARGET, prompt, 6, block_size=4, context=fresh)

        tokens, steps, _ = run(TARGET, prompt, 6, block_size=4, context=context)

        assert tokens == expected
        assert [step.accepted for step in steps] == [step.accepted for step in fresh_steps]
        assert equals_a_fresh_prefill(context, window)


def test_only_what_is_new_is_forwarded() -> None:
    context = Context(TARGET, random_drafting(TARGET))
    context.prefill(LONG[:50], draft=True)

    assert context.reuse([*LONG[:40], 1, 2, 3], draft=True) == 40
    assert context.tokens == LONG[:40]
    assert equals_a_fresh_prefill(context)


def test_the_last_token_of_a_known_prompt_is_forwarded_again_for_its_logits() -> None:
    context = Context(TARGET, random_drafting(TARGET))
    context.prefill(LONG, draft=True)

    assert context.reuse(LONG, draft=True) == len(LONG) - 1


def test_a_turn_without_drafts_leaves_the_next_one_drafting_from_a_whole_context() -> None:
    """The drafter never saw the plain turn, so its tokens are forwarded again: once."""
    context = Context(TARGET, random_drafting(TARGET))
    run(TARGET, LONG[:20], 6, block_size=5, context=context)
    said, _, _ = run(TARGET, LONG[:40], 6, context=context)
    assert context.drafting is not None
    assert context.drafting.length == 20

    assert context.reuse([*LONG[:40], *said, 9], draft=True) == 20
    run(TARGET, [*LONG[:40], *said, 9], 6, block_size=5, context=context)

    assert equals_a_fresh_prefill(context)


def test_a_sliding_drafter_that_cannot_go_back_begins_again() -> None:
    """Its buffer has moved on, so what lies further back than the window is gone."""
    prompt = (LONG * 8)[:520]
    drafting = random_drafting(TARGET, window=8)
    context = Context(TARGET, drafting)
    context.prefill(prompt, draft=True)
    for token in (1, 2, 3):  # a buffer moves when it is full
        context.prefill([token] * 256, draft=True)
    assert drafting.context().rewind_limit > 30

    assert context.reuse([*prompt[:30], 1], draft=True) == 0
    context.prefill(prompt[:30], draft=True)

    assert equals_a_fresh_prefill(context, window=8)


def test_prefill_computes_no_logits() -> None:
    """Report 84: the head over 4,000 rows and 50,000 tokens would take 800 MB."""
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "num_attention_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": 50_000,
        "max_position_embeddings": 8192,
    }
    model = llama.Model(llama.ModelArgs.from_dict(config))
    randomize(model, seed=0)
    target = Target(model, config)
    context = Context(target, None, chunk=512)
    prompt = [i % 1000 for i in range(4000)]
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    context.prefill(prompt[:-1], draft=False)
    run(target, prompt, 2, context=context)

    assert mx.get_peak_memory() - before < 40e6  # a single chunk's logits would be 100 MB


def test_200_rounds_leave_no_memory_behind() -> None:
    """Report 89: no graph, no taps, no logits may outlive their round."""
    context = Context(TARGET, random_drafting(TARGET))
    context.prefill(SHORT[:-1], draft=True)
    active: list[int] = []

    def cut(tokens: list[int]) -> tuple[int, bool]:
        active.append(mx.get_active_memory())
        return 1, len(active) > 200

    for _ in decode(context, SHORT[-1], FixedBlocks(2), 10**6, Chooser(Sampling()), cut):
        pass

    assert len(context.tokens) == 3 + 200  # within the first 256 rows that a cache makes room for
    assert max(active[150:]) <= max(active[10:60]) + 4096


def test_2000_tokens_of_changing_blocks_leave_only_their_caches_behind() -> None:
    """Plain rounds, the drafter's blocks and copies in turn."""
    rows = cycle((1, 16, 4, 1, 1, 12, 1))

    class Turns(FixedBlocks):
        copies = True

        def plan(self, length: int, wanted: int, match: int = 0) -> Plan:
            count = min(next(rows), wanted)
            return Plan(count, match if count > 4 else 0)

    drafting = random_drafting(TARGET)
    context = Context(TARGET, drafting)
    context.prefill(SHORT[:-1], draft=True)
    beside_caches: list[int] = []

    def cut(tokens: list[int]) -> tuple[int, bool]:
        kept = sum(part.nbytes for part in (*context.cache, *drafting.arrays))
        beside_caches.append(mx.get_active_memory() - kept)
        return len(tokens), False

    one_word = Sampling(logit_bias={7: 300.0})
    steps = list(decode(context, SHORT[-1], Turns(16), 2000, Chooser(one_word), cut))

    assert sum(step.accepted for step in steps if step.copied) > 500
    assert sum(step.drafted == 0 for step in steps) > 100
    half = len(beside_caches) // 2
    assert max(beside_caches[half:]) <= max(beside_caches[10:half]) + 16_384


def test_prefill_tells_the_drafter_every_token_once_in_no_more_passes_than_chunks() -> None:
    """Report 48: prefill was 3 to 4 times slower with a drafter."""
    drafter, chunks = Passes(), list[int]()
    context = Context(TARGET, drafting := BlockDrafting(TARGET, drafter), chunk=64)
    prompt = [(5 * i + 1) % 120 for i in range(1500)]
    for part in (prompt[:1000], prompt[1000:]):
        context.prefill(part, draft=True, progress=lambda done, total: chunks.append(done))

    assert sum(drafter.rows) == drafting.length == 1500
    assert len(drafter.rows) <= len(chunks)
