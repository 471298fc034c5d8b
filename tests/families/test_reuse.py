"""A second turn on caches that cannot go back far: warm equals cold, and little is forwarded."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from mlx_lm.models.cache import ConcatenateKVCache

from dflash_mlx.engine.context import Context
from dflash_mlx.engine.options import Sampling
from dflash_mlx.target.model import Target
from tests.families.models import WINDOW, family_drafting, family_target
from tests.tiny import Script, run

FAMILIES = ("gemma3_text", "gpt_oss", "qwen3_5", "lfm2", "nemotron_h")
FIRST = [(17 * i * i + 5 * i + 1) % 120 for i in range(45)]
QUESTION = [3, 9, 27, 81, 11]
SEEDED = Sampling(temperature=0.7)


@cache
def first_reply(family: str) -> list[int]:
    """What the first turn says, decoded plainly."""
    return run(family_target(family), FIRST, 8, sampling=SEEDED)[0]


def after_first_turn(family: str, window: int | None = None) -> Context:
    """A context after `FIRST` and its reply, with some drafts accepted and some not."""
    target = family_target(family)
    keeper = family_drafting(target, window)
    script = Script(first_reply(family), len(FIRST), (0, 3, 1), keeper)
    context = Context(target, script, chunk=16)
    tokens, _, _ = run(target, FIRST, 8, block_size=4, sampling=SEEDED, context=context)
    assert tokens == first_reply(family)
    context.drafting = keeper
    return context


@pytest.mark.parametrize("shared", [1, 4, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 44, 50])
@pytest.mark.parametrize("family", FAMILIES)
def test_warm_says_what_cold_says(family: str, shared: int) -> None:
    """Reports 30 and 73: the same tokens by the same drafts, however much is shared."""
    prompt = [*FIRST, *first_reply(family)][:shared] + QUESTION
    target = family_target(family)
    cold = Context(target, family_drafting(target))
    expected, cold_steps, _ = run(target, prompt, 8, block_size=4, sampling=SEEDED, context=cold)
    warm = after_first_turn(family)

    tokens, steps, _ = run(target, prompt, 8, block_size=4, sampling=SEEDED, context=warm)

    assert tokens == expected
    assert [step.accepted for step in steps] == [step.accepted for step in cold_steps]
    assert warm.tokens == [*prompt, *tokens[:-1]]


@pytest.mark.parametrize("window", [None, 6], ids=["full drafter", "sliding drafter"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_that_goes_on_forwards_only_what_is_new(
    family: str, window: int | None
) -> None:
    said = [*FIRST, *first_reply(family)]
    context = after_first_turn(family, window)

    assert context.reuse([*said, *QUESTION], draft=True) == len(said) - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_ends_in_other_words_is_found_again_before_its_end(family: str) -> None:
    """Report 71: a template may repeat a reply otherwise than it opened it, by 3 to 22 tokens."""
    for overrun in (3, 22):
        context = after_first_turn(family)
        prompt = [*FIRST[:-overrun], *QUESTION, *first_reply(family), *QUESTION]

        reused = context.reuse(prompt, draft=True)

        assert len(FIRST) - 33 <= reused <= len(FIRST) - overrun


@pytest.mark.parametrize("family", FAMILIES)
def test_another_answer_to_the_same_question_begins_at_the_prompts_end(family: str) -> None:
    context = after_first_turn(family)

    assert context.reuse(FIRST, draft=True) == len(FIRST) - 1


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3_text"])
def test_the_question_before_the_last_is_still_within_reach(family: str) -> None:
    context = after_first_turn(family)
    target = family_target(family)
    said = [*FIRST, *first_reply(family)]
    run(target, [*said, *QUESTION, 7, 7], 9, block_size=4, context=context)

    assert context.reuse([*FIRST, 1, 2], draft=True) >= len(FIRST) - 1


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_5"])
def test_a_prompt_that_shares_nothing_begins_again(family: str) -> None:
    """Even where the conversation began with a prompt too short to go back into."""
    target = family_target(family)
    context = Context(target, family_drafting(target))
    for entry in context.cache:
        entry.step = 8
    context.prefill(FIRST[:8], draft=True)
    run(target, FIRST[:9], 60, block_size=4, context=context)
    expected, _, _ = run(target, QUESTION, 6)

    tokens, _, _ = run(target, QUESTION, 6, block_size=4, context=context)

    assert tokens == expected


def test_no_snapshot_is_taken_where_none_is_needed() -> None:
    context = after_first_turn("llama")

    assert context._snapshots == []


def test_snapshots_do_not_pile_up() -> None:
    context = after_first_turn("qwen3_5")
    for turn in range(5):
        context.prefill([turn] * 40, draft=True)

    assert len(context._snapshots) == 4


class Unknown(Target):
    """Its caches are of a kind that works and that we do not know."""

    def make_cache(self) -> list[Any]:
        """One a layer."""
        return [ConcatenateKVCache() for _ in self.body.layers]


def test_an_unknown_cache_begins_again_every_turn() -> None:
    """Plainly, and right."""
    known = family_target("llama")
    target = Unknown(known.model, known.config)
    context = Context(target, None)
    said, _, _ = run(target, FIRST, 8, context=context)
    for prompt in ([*FIRST, *said, 1, 2], [*FIRST[:40], 7]):
        expected, _, _ = run(known, prompt, 6)

        assert context.reuse(prompt, draft=False) == 0
        assert run(target, prompt, 6, context=context)[0] == expected
