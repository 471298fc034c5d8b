"""What the embedded drafter was trained on: a recipe, and nothing that is evaluated on."""

from __future__ import annotations

import re

import pytest

from dflash_mlx.benchmark import strata
from dflash_mlx.training.conversations import read_conversations
from dflash_mlx.training.prompts import make_plans, read_prompts
from dflash_mlx.training.settings import PrepareSettings, RunSettings, gather, read_recipe
from tests.conftest import ROOT

HERE = ROOT / "scripts" / "embedded-drafter"
QUESTIONS = [prompt.turns[0] for prompt in read_prompts(HERE / "prompts.jsonl.gz")]


def words(text: str) -> frozenset[str]:
    """The words of a question, without order, case and punctuation."""
    return frozenset(re.findall(r"\w+", text.lower()))


TRAINED = [words(text) for text in QUESTIONS]


def to_complete(text: str) -> set[str]:
    """The functions that a question gives the head of, to be completed."""
    found = re.findall(r"^def (\w+)", text, re.MULTILINE)
    return set(found if text.startswith("Complete this Python function") else ())


def test_the_recipe_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = read_recipe(HERE / "recipe.yaml")
    plans = make_plans(gather(PrepareSettings, recipe["prepare"], {}), 0.7)
    assert {plan.prompt.turns[0] for plan in plans} == set(QUESTIONS)
    run = gather(RunSettings, recipe["run"], {})
    assert (ROOT / run.init / "config.json").exists()
    [data] = run.data or []
    talks = read_conversations(data, vocabulary=49152)
    assert len({talk.prompt for talk in talks}) > 4000
    assert sum(int(talk.assistant.sum()) for talk in talks) > 400_000


@pytest.mark.parametrize("kind", strata.FILES)
def test_no_question_is_one_that_is_evaluated_on(kind: str) -> None:
    """Nor nearly one: no two share seven tenths of their words, and no function has one's name."""
    asked = strata.prompts(kind)
    names = set().union(*map(to_complete, asked))
    assert not names & set().union(*map(to_complete, QUESTIONS))
    assert (len(names) > 150) is (kind == "code")
    assert len(TRAINED) > 5000
    for text in asked:
        own = words(text)
        sized = [other for other in TRAINED if 0.7 < len(own) / len(other) < 1 / 0.7]
        near = [other for other in sized if len(own & other) > 0.7 * len(own | other)]
        assert not near, text
