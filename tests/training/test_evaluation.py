"""Served figures: answers that loop told apart, speeds in turns, each set and temperature alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_mlx.commands.train.evaluate import _keep_figures, _prompts
from dflash_mlx.engine.options import Options
from dflash_mlx.errors import UsageError
from dflash_mlx.training import evaluation
from dflash_mlx.training.evaluation import Served, ServedSet, serve
from dflash_mlx.training.settings import EvalSettings
from tests.tiny_folders import tiny_pair

LOOP = [7, 8, 9, 10, 11, 12, 13, 14] * 3


def answer(
    tokens: list[int],
    accepted: list[int],
    speed: float | None = None,
    plain: float | None = None,
) -> Served:
    return Served([1], tokens, accepted, [7] * len(accepted), speed, plain)


def test_answers_that_go_round_in_circles_are_apart() -> None:
    """They flatter: here the acceptance length with them is 4, and without 2."""
    both = ServedSet([answer(LOOP, [7, 7]), answer([*range(20)], [1, 1, 1, 1])])
    straight, looped = (part.to_json() for part in both.apart())
    assert (straight["answers"], straight["acceptance_length"]) == (1, 2.0)
    assert (looped["answers"], looped["acceptance_length"]) == (1, 8.0)
    assert both.to_json()["acceptance_length"] == 4.0


def test_speeds_are_medians_and_so_are_ratios_on_one_prompt() -> None:
    timed = [(30.0, 10.0), (20.0, 20.0), (90.0, 30.0), (None, None)]
    figures = ServedSet([answer([1], [], *speeds) for speeds in timed]).to_json()
    assert figures["tokens_per_second"] == 30
    assert figures["plain_tokens_per_second"] == 20
    assert figures["times_plain"] == 3


def test_without_plain_decoding_there_is_no_ratio() -> None:
    figures = ServedSet([answer([1], [], 30.0)]).to_json()
    assert figures["tokens_per_second"] == 30
    assert figures["plain_tokens_per_second"] is None
    assert figures["times_plain"] is None


def test_drafting_and_plain_decoding_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two comes first changes from prompt to prompt; both have one seed."""
    calls: list[tuple[int | None, bool]] = []

    def scripted(pair: object, prompt: list[int], options: Options) -> Served:
        calls.append((options.seed, options.draft))
        return answer([prompt[0]], [1] if options.draft else [], 20.0 if options.draft else 10.0)

    monkeypatch.setattr(evaluation, "_serve", scripted)
    done = list(serve(tiny_pair(), [[1], [2], [3]], Options(seed=5), plain=True))
    assert calls == [(5, True), (5, False), (6, False), (6, True), (7, True), (7, False)]
    assert [(one.speed, one.plain_speed, one.same) for one in done] == [(20.0, 10.0, True)] * 3


def test_figures_of_one_set_stay_beside_those_of_others(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    one = {"drafter": "a", "set": "chat, served", "temperature": 0.0, "rows": 8}
    others = [{**one, "temperature": 0.7}, {**one, "set": "code, served"}, {**one, "rows": 4}]
    others.append({**one, "drafter": "b"})
    _keep_figures(file, [one, {**one, "looping": True}, *others])
    _keep_figures(file, [{**one, "answers": 3}])
    assert json.loads(file.read_text())["rows"] == [*others, {**one, "answers": 3}]


@pytest.mark.parametrize(
    ("kind", "words"), [("chat", "My upstairs neighbour"), ("code", "has_close_elements")]
)
def test_the_prompts_of_bench_go_by_their_names(kind: str, words: str) -> None:
    pair = tiny_pair()
    found = _prompts(pair, Path(kind), EvalSettings(conversations=2))
    assert len(found) == 2
    text = pair.tokenizer.decode(found[0])
    assert words in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat").write_text('{"text": "Mine"}\n')
    [found] = _prompts(tiny_pair(), Path("chat"), EvalSettings())
    assert "Mine" in tiny_pair().tokenizer.decode(found)
    with pytest.raises(UsageError, match="no file novels"):
        _prompts(tiny_pair(), Path("novels"), EvalSettings())
