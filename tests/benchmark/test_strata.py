"""The prompts: enough of every kind, none twice, and none that a drafter was trained on."""

from __future__ import annotations

import re

import pytest

from dflash_mlx.benchmark.strata import FILES, chosen, prompts
from dflash_mlx.errors import UsageError
from dflash_mlx.training.topics import TEMPLATES


def test_every_kind_has_at_least_twelve_prompts_and_none_twice() -> None:
    counts = {kind: prompts(kind) for kind in FILES}
    assert {kind: len(texts) for kind, texts in counts.items() if len(texts) < 12} == {}
    together = [text for texts in counts.values() for text in texts]
    assert len(set(together)) == len(together)
    assert (len(counts["chat"]), len(counts["code"])) == (100, 164)


def test_no_chat_prompt_is_of_a_form_that_drafters_are_trained_on() -> None:
    forms = [re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(template)) for template in TEMPLATES]
    assert [text for text in prompts("chat") for form in forms if re.fullmatch(form, text)] == []


def test_code_asks_for_a_whole_function() -> None:
    first = prompts("code", 1)[0]
    assert first.startswith("Complete this Python function.")
    assert "def has_close_elements" in first


@pytest.mark.parametrize("context", [50, 700, 6000])
def test_a_long_prompt_has_about_the_context_that_is_asked_for(context: int) -> None:
    texts = prompts("long-context", 3, context=context, count=lambda text: len(text.split()))
    sizes = [len(text.split()) for text in texts]
    assert all(context <= size <= context + 120 for size in sizes)
    assert len({text[40:80] for text in texts}) == 3, "no two may share what a cache would keep"


def test_long_prompts_end_with_their_own_questions() -> None:
    first, second = prompts("long-context", 2, context=50)
    assert first.endswith("Summarize these notes in five sentences.")
    assert second.rsplit("\n\n", 1)[1] != first.rsplit("\n\n", 1)[1]


def test_a_list_of_kinds_may_have_spaces_and_must_be_known() -> None:
    assert chosen("code, chat") == ["code", "chat"]
    assert chosen("chat,chat") == ["chat"]  # else its answers would count twice
    assert chosen(None) == list(FILES)
    with pytest.raises(UsageError, match=r"no prompts 'prose'.*chat, code, maths"):
        chosen("chat,prose")
    with pytest.raises(UsageError, match="no prompts ''"):
        chosen("")  # a shell's variable that was never set is no wish for all
