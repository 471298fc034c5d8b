"""`dflash-mlx bench`: from flags to figures, on a tiny pair and a fake server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_mlx import cli
from dflash_mlx.api import encode
from dflash_mlx.benchmark.arms import EngineArm
from dflash_mlx.commands import bench as command
from dflash_mlx.commands.bench_arguments import BenchArguments
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError, UsageError
from tests.benchmark.test_server import serving
from tests.tiny_folders import TinyPair, tiny_pair, write_tiny_pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


def bench(folders: TinyPair, *flags: str) -> int:
    models = ("--model", str(folders.target), "--draft-model", str(folders.drafter))
    return cli.run(["bench", *models, "--cache-dir", str(folders.target.parent), *flags])


SHORT = ("--strata", "chat", "--limit", "2", "-m", "6", "--arms", "copy,block-4")


def test_the_figures_are_where_programs_look_for_them(
    folders: TinyPair, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folders, *SHORT, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    arms = report["strata"]["chat"]["arms"]
    assert list(arms) == ["plain", "copy", "block-4"]
    for name, figures in arms.items():
        assert figures["speedup"] > 0
        assert figures["tokens_per_second"] > 0
        assert figures["time"]["prefill"] > 0
        assert figures["time"]["decode"] > 0
        assert 0 < figures["time"]["outside"] < figures["time"]["decode"]
        assert figures["acceptance_length"] is None or name != "plain"
        assert figures["identity"]["same"] == 2
    assert arms["block-4"]["acceptance_length"] >= 1
    assert len(arms["block-4"]["per_position"]) == 3
    assert report["configuration"]["model"] == "target"
    assert report["versions"]["mlx"]
    assert list(report["warm_up"]) == list(arms)


def test_people_get_a_table_a_stratum_and_what_it_ran_on(
    folders: TinyPair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "bench.png"
    assert bench(folders, *SHORT, "--strata", "chat,json", "--plot", str(picture)) == 0
    told, progress = capsys.readouterr()
    assert told.count("times plain (95 %)") == 2
    assert "chat (greedy, 2 prompts)" in told
    assert "json (greedy, 2 prompts)" in told
    assert "Warm-up, tokens/s, not counted: plain " in told
    assert "; dflash-mlx " in told.splitlines()[-1]
    assert "now chat ..." in progress
    assert picture.exists()


def test_the_prompt_is_the_one_that_a_chat_would_have() -> None:
    pair, text = tiny_pair(), "How are you?"
    rendered = pair.render([{"role": "user", "content": text}])
    assert command._tokens(pair, text) == pair.encode(rendered)
    assert command._tokens(pair, text) == encode(pair, [{"role": "user", "content": text}])


@pytest.mark.parametrize(
    ("choice", "own", "expected"),
    [
        ("both", Sampling(temperature=0.5), {"chat": 0.5, "chat-greedy": 0.0}),
        ("own", Sampling(temperature=0.5), {"chat": 0.5}),
        ("greedy", Sampling(temperature=0.5), {"chat": 0.0}),
        ("both", Sampling(), {"chat": 0.0}),
        ("own", Sampling(), {"chat": 0.0}),
    ],
)
def test_each_sampling_is_a_stratum_of_its_own(
    choice: Any, own: Sampling, expected: dict[str, float]
) -> None:
    made = command._strata(BenchArguments(strata="chat", sampling=choice), own, len)
    assert {kind.name: kind.sampling and kind.sampling.temperature for kind in made} == expected


def test_a_wrong_token_is_found_and_its_margin_told(
    folders: TinyPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = EngineArm.answer

    def wrong(self: EngineArm, asked: Any) -> Any:
        sample = right(self, asked)
        if self.name == "block-4":
            assert sample.tokens is not None
            sample.tokens[2] = (sample.tokens[2] + 1) % 200
        return sample

    monkeypatch.setattr(EngineArm, "answer", wrong)
    assert bench(folders, *SHORT, "--limit", "1", "--json") == 0
    arms = json.loads(capsys.readouterr().out)["strata"]["chat"]["arms"]
    identity = arms["block-4"]["identity"]
    assert (identity["same"], identity["compared"]) == (0, 1)
    difference = identity["first_difference"]
    assert difference["place"] == 2
    assert difference["words"].startswith("BUG: after 2 tokens")
    assert 0 < difference["top2_margin"] <= difference["margin"]
    assert arms["copy"]["identity"]["first_difference"] is None


def test_stopped_early_it_reports_what_it_has(
    folders: TinyPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, asked_so_far = EngineArm.answer, list[int]()

    def stopping(self: EngineArm, asked: Any) -> Any:
        asked_so_far.append(1)
        if len(asked_so_far) > 10:
            raise KeyboardInterrupt
        return right(self, asked)

    monkeypatch.setattr(EngineArm, "answer", stopping)
    assert bench(folders, *SHORT, "--limit", "4", "--json") == 130
    report = json.loads(capsys.readouterr().out)
    assert any(note.startswith("stopped before the end") for note in report["notes"])
    assert report["strata"]["chat"]["prompts"] == 2


def test_where_plain_decoding_fails_what_was_measured_until_then_is_reported(
    folders: TinyPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, asked_so_far = EngineArm.answer, list[int]()

    def failing(self: EngineArm, asked: Any) -> Any:
        asked_so_far.append(1)
        if self.name == "plain" and len(asked_so_far) > 10:
            raise DFlashError("The device is gone.")
        return right(self, asked)

    monkeypatch.setattr(EngineArm, "answer", failing)
    assert bench(folders, *SHORT, "--limit", "4", "--json") == 1
    told = capsys.readouterr()
    report = json.loads(told.out)
    words = "stopped before the end (The device is gone.): these are the answers until then"
    assert words in report["notes"]
    assert report["strata"]["chat"]["arms"]["copy"]["answers"] >= 1
    assert "The device is gone." in told.err


def test_a_draft_model_of_another_vocabulary_is_refused(
    folders: TinyPair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = command.load_target

    def other(*arguments: Any) -> Any:
        model, config, weights = right(*arguments)
        return model, {**config, "vocab_size": 999}, weights

    monkeypatch.setattr(command, "load_target", other)
    assert bench(folders, *SHORT, "--mlx-lm-draft", str(folders.target)) == 1
    told = capsys.readouterr().err
    assert "has a vocabulary of 999 tokens and the model one of 320" in told


def test_mlx_lm_with_a_draft_model_is_an_arm(
    folders: TinyPair, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--arms", "plain", "--limit", "1", "--mlx-lm-draft", str(folders.target))
    assert bench(folders, *SHORT, *flags, "--json") == 0
    arms = json.loads(capsys.readouterr().out)["strata"]["chat"]["arms"]
    assert arms["mlx-lm-draft"]["acceptance_length"] > 1


def test_servers_are_measured_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as one, serving() as two:
        two.usage = False
        urls = ("--base-url", f"one={one.url}", "--base-url", f"two={two.url}")
        assert cli.run(["bench", *urls, "--strata", "chat", "--limit", "2", "--json"]) == 0
        samplings = [request.get("temperature") for request in one.requests]
    report = json.loads(capsys.readouterr().out)
    assert list(report["strata"]) == ["chat", "chat-greedy"]
    assert list(report["strata"]["chat"]["arms"]) == ["one", "two"]
    assert report["strata"]["chat"]["arms"]["two"]["speedup"] > 0
    assert report["strata"]["chat"]["arms"]["two"]["identity"] is None
    assert report["servers"] == {"one": "served", "two": "served"}
    assert set(samplings) == {None, 0}
    assert any("two does not tell how many tokens" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--limit", "0"), "--limit must be 1 or more"),
        (("--max-tokens", "0"), "--max-tokens must be 1 or more"),
        (("--seed", "-1"), "--seed must be 0 or more"),
        (("--peer", "dflash=sh", "--peer", "dflash=sh"), "--peer names dflash twice"),
        (("--base-url", "http://x", "--base-url", "http://x"), "names http://x twice"),
        (("--strata", "prose"), "no prompts 'prose'"),
        (("--arms", "fast"), "no arm 'fast'"),
        (("--peer", "dflash"), "--peer takes NAME=PYTHON"),
        (("--base-url", "here"), "--base-url takes a URL"),
        (("--base-url", "http://x", "--arms", "plain"), "measures servers alone"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_code_2(
    folders: TinyPair, flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folders, *flags) == 2
    assert words in capsys.readouterr().err


def test_limits_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError):
        BenchArguments(runs=0)
