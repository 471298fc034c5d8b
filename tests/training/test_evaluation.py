"""Served figures: answers that loop told apart, speeds in turns, each set and temperature alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_mlx import cli
from dflash_mlx.commands.train import evaluate
from dflash_mlx.commands.train.evaluate import _name, _prompts
from dflash_mlx.commands.train.figures import keep_figures, read_figures
from dflash_mlx.engine.options import Options
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.training import evaluation
from dflash_mlx.training.evaluation import Served, ServedSet, serve
from dflash_mlx.training.settings import EvalSettings
from tests.tiny_folders import tiny_pair, write_tiny_pair

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
    keep_figures(file, [one, {**one, "looping": True}, *others])
    keep_figures(file, [{**one, "answers": 3}])
    assert read_figures(file) == [*others, {**one, "answers": 3}]


def test_figures_are_whole_or_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    keep_figures(file, [{"set": "chat"}])
    with pytest.raises(TypeError, match="JSON"):
        keep_figures(file, [{"set": "code", "answers": object()}])
    assert read_figures(file) == [{"set": "chat"}]
    link = tmp_path / "other.json"
    link.hardlink_to(file)
    keep_figures(file, [{"set": "code"}])
    assert read_figures(link) == [{"set": "chat"}], "written in place"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rows": 5}', '{"rows": [5]}', "\udcff"])
def test_damaged_figures_are_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "figures.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DFlashError, match="damaged: delete it"):
        read_figures(file)


def test_what_hinders_an_evaluation_is_told_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a drafter is looked for, and there is none here."""
    job = tmp_path / "job"
    for folder in (job, tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "x.jsonl").write_text('{"text": "Hi"}\n')
    (tmp_path / "empty.jsonl").touch()
    (job / "figures.json").write_text("{")

    def told(*files: str) -> str:
        prompts = [word for file in files for word in ("--prompts", str(tmp_path / file))]
        assert cli.run(["train", "eval", "--folder", str(job), *prompts]) != 0
        return capsys.readouterr().err

    assert "Two sets of prompts are called x" in told("a/x.jsonl", "b/x.jsonl")
    assert "empty.jsonl has no prompts" in told("empty.jsonl")
    assert "figures.json is damaged" in told("a/x.jsonl")


def test_only_what_is_held_out_is_called_that() -> None:
    assert _name(EvalSettings()) == "held out"
    assert _name(EvalSettings(data=[Path("x/mine.jsonl.gz"), Path("y/data")])) == "mine, data"


def test_an_interrupted_evaluation_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sets that are done are kept; once they are asked for otherwise they are measured anew."""
    pair, job = write_tiny_pair(tmp_path), tmp_path / "job"
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "Hi"}\n')
    command = ["train", "eval", "--folder", str(job), "--model", str(pair.target)]
    command += ["--draft-model", str(pair.drafter), "--prompts", str(tmp_path / "a.jsonl")]
    command += ["--prompts", str(tmp_path / "b.jsonl"), "--max-tokens"]
    measured: list[str] = []

    def row(pair: object, settings: object, name: str, *_: object) -> list[dict[str, object]]:
        if measured == ["a"]:
            measured.append("stop")
            raise KeyboardInterrupt
        measured.append(name)
        return [{"set": f"{name}, served", "looping": loop} for loop in (False, True)]

    monkeypatch.setattr(evaluate, "_served", row)
    assert cli.run([*command, "8"]) == 130
    assert len(read_figures(job / "figures.json")) == 2
    assert cli.run([*command, "8"]) == 0
    assert "a, served, temperature 0: measured already" in capsys.readouterr().err
    assert cli.run([*command, "9"]) == 0
    assert measured == ["a", "stop", "b", "a", "b"]
    assert len(read_figures(job / "figures.json")) == 4


def test_where_nothing_is_held_out_questions_of_bench_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a small trial run comes to its end, and says so."""
    pair, asked = write_tiny_pair(tmp_path), dict[str, int]()
    command = ["train", "eval", "--folder", str(tmp_path / "job"), "--model", str(pair.target)]
    command += ["--draft-model", str(pair.drafter), "--serve", "3"]

    def row(_: object, settings: object, name: str, prompts: list[object], *__: object) -> object:
        asked[name] = len(prompts)
        return [{"set": f"{name}, served", "looping": False}]

    monkeypatch.setattr(evaluate, "_heldout", lambda *_: [])
    monkeypatch.setattr(evaluate, "_served", row)
    assert cli.run(command) == 0
    assert asked == {"chat": 3}
    assert "note: nothing is held out, so bench's questions" in capsys.readouterr().err
    assert cli.run([*command[:-1], "0"]) == 1
    said = capsys.readouterr().err
    assert "and --serve 0 serves none: leave it out." in said
    assert "--data" not in said


@pytest.mark.parametrize(
    ("kind", "words"), [("chat", "My upstairs neighbour"), ("code", "has_close_elements")]
)
def test_the_prompts_of_bench_go_by_their_names(kind: str, words: str) -> None:
    found = _prompts(Path(kind), 2)
    assert len(found) == 2
    text = tiny_pair().render(found[0])
    assert words in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat").write_text('{"text": "Mine"}\n')
    assert _prompts(Path("chat"), 9) == [[{"role": "user", "content": "Mine"}]]
    with pytest.raises(UsageError, match="no file novels"):
        _prompts(Path("novels"), 9)
