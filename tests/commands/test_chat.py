"""`dflash-mlx chat` from outside: in a terminal for three turns, and in a pipe."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from dflash_mlx import cli
from dflash_mlx.api import load
from dflash_mlx.chat.prompt import PromptReader
from dflash_mlx.chat.reader import PlainReader
from dflash_mlx.chat.state import write_json
from dflash_mlx.chat.view import PlainView
from dflash_mlx.commands.arguments import ChatArguments, PairArguments
from dflash_mlx.commands.chat import terminal
from dflash_mlx.commands.loading import load_for
from dflash_mlx.engine.options import Options
from dflash_mlx.hub.fit import GIB, Machine
from dflash_mlx.pair import Pair
from tests.chat.pairs import write_talking_pair
from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.conftest import RunCli
from tests.tiny_folders import TinyPair

STATISTICS = "· seed "
STATE = Path(".local/share/dflash-mlx")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return write_talking_pair(tmp_path_factory.mktemp("pair"))


def flags(pair: TinyPair) -> list[str]:
    return ["--model", str(pair.target), "--draft-model", str(pair.drafter), "--exact"]


def reply_to(message: str, screen: str) -> str:
    """The line after a message."""
    return screen.split(f"> {message}\n")[1].split("\n")[0]


def test_three_turns_with_an_interrupt_and_the_next_turn_is_right(
    pair: TinyPair, tmp_path: Path
) -> None:
    command = ["-m", "dflash_mlx", "chat", *flags(pair), "--max-tokens", "80", "--plain"]
    window = Terminal(command, home=tmp_path, columns=500)  # a reply is one line
    try:
        window.wait_for("leaves.\n>")
        window.type(CTRL_C)
        window.wait_for("Ctrl-D or /exit leaves.\n>")
        window.type("one" + ENTER)
        window.wait_for(STATISTICS)
        window.type("two" + ENTER)
        window.wait_until(lambda: re.search(r"> two\n\w{3}", window.text) is not None)
        window.type(CTRL_C)
        window.wait_for(", interrupted")
        window.type("three" + ENTER)
        window.wait_for(STATISTICS, count=3)
        window.type(CTRL_D)
        assert window.leave() == 0
        screen = window.text
    finally:
        window.close()

    said = int(re.findall(r"(\d+) tokens, interrupted", screen)[0])
    assert 0 < said < 80
    session = load(pair.target, pair.drafter, exact=True).session(options=Options(max_tokens=80))
    for message in ("one", "two", "three"):
        events, text = session.send(message), ""
        for event in events:
            text += event.text
            if message == "two" and event.stats.generated_tokens == said:
                events.close()
        assert reply_to(message, screen) == text.rstrip()


def test_piped_lines_are_messages_and_only_answers_reach_standard_output(
    pair: TinyPair, run_cli: RunCli
) -> None:
    chat = run_cli("chat", *flags(pair), "-m", "9", stdin="one\n\ntwo\n/exit\nthree\n", home=True)
    assert chat.returncode == 0
    session = load(pair.target, pair.drafter, exact=True).session(options=Options(max_tokens=9))
    answers = ["".join(event.text for event in session.send(m)) for m in ("one", "two")]
    assert chat.stdout == f"{answers[0]}\n{answers[1]}\n"
    assert chat.stderr.count(STATISTICS) == 2
    assert ">" not in chat.stderr


# From here on in this process: what the chat makes of its flags and files


@dataclass
class Piped:
    """`dflash-mlx chat` with messages on standard input and a home of its own."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def chat(self, *flags: str, stdin: str = "", code: int = 0) -> tuple[str, str]:
        """Standard output and standard error of a run."""
        self.monkeypatch.setenv("HOME", str(self.home))
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        assert cli.run(["chat", *flags]) == code
        return self.capsys.readouterr()

    def configure(self, content: str) -> None:
        """Write config.toml."""
        path = self.home / ".config" / "dflash-mlx" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def piped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Piped:
    return Piped(tmp_path, monkeypatch, capsys)


def test_an_error_in_a_pipe_ends_the_chat_with_its_exit_code(pair: TinyPair, piped: Piped) -> None:
    out, err = piped.chat(*flags(pair), stdin="/newer\none\n", code=2)
    assert out == ""
    assert err.endswith("error: There is no command /newer: did you mean /new?\n")


def test_flags_win_over_the_config_file_and_it_over_the_defaults(
    pair: TinyPair, piped: Piped
) -> None:
    piped.configure("temperature = 0.5\ntop-k = 7\nblock-size = 4\ncache-dir = '/nowhere'")
    _, err = piped.chat(*flags(pair), "--temperature", "0.25", stdin="/set\n")
    assert re.search(r"temperature +0\.25 ", err)
    assert re.search("top-k +7 ", err)
    assert re.search("block-size +4 ", err)
    assert re.search("seed +drawn for each reply", err)


def test_the_models_own_sampling_is_shown_by_set(tmp_path: Path, piped: Piped) -> None:
    """And where a model has none, it is greedy."""
    folders = write_talking_pair(tmp_path / "sampled")
    _, err = piped.chat(*flags(folders), stdin="/set\n")
    assert re.search(r"temperature +0\.0\n", err)
    own = folders.target / "generation_config.json"
    own.write_text('{"do_sample": true, "temperature": 0.3, "top_k": 5}')
    _, err = piped.chat(*flags(folders), stdin="/set\n")
    assert re.search(r"temperature +0\.3\n", err)
    assert re.search(r"top-k +5\n", err)


class Typist(PlainReader):
    """Somebody at a terminal who types these lines and leaves."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)

    def read(self) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def test_an_error_of_the_system_does_not_end_a_conversation(
    pair: TinyPair, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "/disk")

    ends = (Typist("/save a", "/model"), PlainView())
    monkeypatch.setattr("dflash_mlx.commands.chat.terminal", lambda *_: ends)
    monkeypatch.setattr("dflash_mlx.chat.saved.write_json", fail)
    _, err = piped.chat(*flags(pair))
    assert err.endswith("error: Input/output error (/disk).\ntarget with drafter\n")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.EIO, "no", "/disk")])
def test_another_pair_that_does_not_come_leaves_the_old_one_in_its_place(
    failure: BaseException, pair: TinyPair, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it loads, say."""
    answers: list[BaseException | None] = [None, failure, None]

    def load_or_fail(arguments: PairArguments) -> Pair:
        if problem := answers.pop(0):
            raise problem
        return load_for(arguments)

    ends = (Typist("one", "/model other", "two"), PlainView())
    monkeypatch.setattr("dflash_mlx.commands.chat.terminal", lambda *_: ends)
    monkeypatch.setattr("dflash_mlx.commands.chat.load_for", load_or_fail)
    out, _ = piped.chat(*flags(pair), "-m", "9")
    session = load(pair.target, pair.drafter, exact=True).session(options=Options(max_tokens=9))
    answers_to = ["".join(event.text for event in session.send(m)) for m in ("one", "two")]
    assert out == "".join(f"{answer}\n" for answer in answers_to)


@pytest.mark.parametrize("named", [False, True])
def test_without_a_model_the_best_known_pair_is_named_with_its_command(
    named: bool, pair: TinyPair, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_mlx.commands.chat.EMBEDDED", str(pair.target))
    monkeypatch.setattr("dflash_mlx.commands.chat.terminal", lambda *_: (Typist(), PlainView()))
    monkeypatch.setattr("dflash_mlx.hub.registry.this_machine", lambda: Machine(16 * GIB, True))
    _, err = piped.chat("--exact", *(["--model", str(pair.target)] if named else []))
    line = "Qwen3.5-9B is the best known pair for this machine's memory"
    assert (line in err) is not named
    assert ("`dflash-mlx models pull Qwen3.5-9B` gets it" in err) is not named


def test_a_mistake_in_the_config_file_is_an_error(piped: Piped) -> None:
    piped.configure("temprature = 0.5")
    _, err = piped.chat(code=2)
    assert "there is no setting temprature: did you mean temperature?" in err


def test_generate_knows_nothing_of_the_config_file(
    pair: TinyPair, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped.configure("nonsense = 1")
    monkeypatch.setenv("HOME", str(piped.home))
    assert cli.run(["generate", *flags(pair), "-p", "one", "-m", "3"]) == 0


def test_without_a_model_the_chat_takes_the_last_pair(pair: TinyPair, piped: Piped) -> None:
    piped.chat(*flags(pair))
    _, err = piped.chat("--exact", stdin="/model\n")
    assert err.endswith("target with drafter\n")


def test_a_last_pair_that_is_gone_is_said_and_the_embedded_one_taken(
    pair: TinyPair, piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_mlx.commands.chat.EMBEDDED", str(pair.target))
    gone = piped.home / "gone"
    write_json(piped.home / STATE / "last-pair.json", {"model": str(gone), "draft_model": "auto"})
    _, err = piped.chat("--exact", stdin="/model\n")
    assert "note: the last pair cannot be used" in err
    assert str(gone) in err
    assert err.endswith("target without a drafter\n")


def test_where_nothing_can_be_kept_a_note_says_so_and_the_chat_goes_on(
    pair: TinyPair, piped: Piped
) -> None:
    """A home that is a file: neither the history nor the pair can be written."""
    piped.home = piped.home / "home"
    piped.home.write_text("")
    out, err = piped.chat(*flags(pair), "-m", "9", stdin="one\n")
    assert out.strip()
    assert "error" not in err
    assert f"note: the next chat will not know this pair: {piped.home} is a file" in err


def test_without_a_drafter_that_was_asked_for_there_is_no_chat(
    pair: TinyPair, piped: Piped
) -> None:
    missing = piped.home / "none"
    out, err = piped.chat(
        "--model", str(pair.target), "--draft-model", str(missing), stdin="one\n", code=1
    )
    assert out == ""
    assert "error: " in err
    assert str(missing) in err


def test_a_model_without_a_template_is_refused_in_a_sentence(tmp_path: Path, piped: Piped) -> None:
    base = write_talking_pair(tmp_path / "base")
    path = base.target / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))
    out, err = piped.chat(*flags(base), stdin="one\n", code=2)
    assert out == ""
    assert err.endswith(
        "error: This model has no chat template (it is a base model): use"
        " `generate --ignore-chat-template` to continue a raw text.\n"
    )


def test_a_reply_that_repeats_itself_is_stopped_with_a_line_unless_it_may(
    tmp_path: Path, piped: Piped
) -> None:
    loop = write_talking_pair(tmp_path / "loop", letters="a")
    _, err = piped.chat(*flags(loop), "-m", "300", stdin="one\n")
    assert "Stopped: the model began to repeat itself (/set loop-stop off" in err
    assert " tokens, interrupted" in err
    _, err = piped.chat(*flags(loop), "-m", "300", "--no-loop-stop", stdin="one\n")
    assert "Stopped" not in err
    assert "300 tokens, cut off at the limit" in err


def test_what_was_thought_is_counted_and_printed_on_demand(tmp_path: Path, piped: Piped) -> None:
    """The template leaves a thought open, and the model never closes it."""
    thinker = write_talking_pair(tmp_path / "thinker")
    path = thinker.target / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"chat_template": config["chat_template"] + "<think>"}))
    out, err = piped.chat(*flags(thinker), "-m", "20", stdin="one\n/thinking\n")
    assert out == "\n"
    assert "thinking ... 20 tokens\n" in err
    assert re.search(r"\n[a-z ]{19,20}\n$", err)
    _, streamed = piped.chat(*flags(thinker), "-m", "20", "--show-thinking", stdin="one\n")
    assert re.search(r"^thinking \.\.\.\n[a-z ]{19,20}\n", streamed, re.MULTILINE)


SWITCH = "{% if enable_thinking is defined %}{{ 'on:' if enable_thinking else 'off:' }}{% endif %}"


@pytest.mark.parametrize(
    ("trained", "flag", "told"),
    [
        (None, [], ""),
        (None, ["--thinking"], "on:"),
        (False, [], "off:"),
        (True, [], "on:"),
        (False, ["--thinking"], "on:"),
        (True, ["--no-thinking"], "off:"),
    ],
)
def test_the_model_thinks_as_its_drafter_was_trained_unless_told(
    tmp_path: Path, piped: Piped, trained: bool | None, flag: list[str], told: str
) -> None:
    """Chat and generate make the same prompt; the mode costs acceptance if it is the wrong one."""
    folders = write_talking_pair(tmp_path / "switch")
    for path, key, change in (
        (folders.target / "tokenizer_config.json", "chat_template", lambda old: SWITCH + old),
        (folders.drafter / "config.json", "enable_thinking", lambda _: trained),
    ):
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {key: change(config.get(key))}))
    want = load(folders.target, folders.drafter, exact=True)
    plain = len(want.encode(want.render([{"role": "user", "content": "one"}], thinking=None)))
    length = len(told) + plain - len("" if trained is None else "on:" if trained else "off:")
    _, err = piped.chat(*flags(folders), *flag, "-m", "2", stdin="one\n")
    assert f"· prompt {length} ·" in err


def test_a_switch_that_the_template_lacks_is_said(pair: TinyPair, piped: Piped) -> None:
    _, err = piped.chat(*flags(pair), "--thinking")
    assert "template has no switch for thinking" in err


@pytest.mark.parametrize(
    ("stdin", "stdout", "term", "plain", "reader", "view"),
    [
        (True, True, "xterm-256color", False, "PromptReader", "ScreenView"),
        (True, True, "xterm-256color", True, "PlainReader", "PlainView"),
        (True, True, "dumb", False, "PlainReader", "PlainView"),
        (True, True, None, False, "PlainReader", "PlainView"),
        (True, False, "xterm-256color", False, "PlainReader", "PlainView"),
        (False, True, "xterm-256color", False, "PipeReader", "PlainView"),
    ],
)
def test_how_it_reads_and_shows_depends_on_both_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stdin: bool,
    stdout: bool,
    term: str | None,
    plain: bool,
    reader: str,
    view: str,
) -> None:
    master, slave = pty.openpty()
    with open(slave, "r+b", buffering=0) as raw:  # noqa: PTH123  (a descriptor, not a path)
        ends = {True: io.TextIOWrapper(raw), False: io.StringIO()}
        monkeypatch.setattr(sys, "stdin", ends[stdin])
        monkeypatch.setattr(sys, "stdout", ends[stdout])
        if term is None:
            monkeypatch.delenv("TERM", raising=False)
        else:
            monkeypatch.setenv("TERM", term)
        found = terminal(ChatArguments(plain=plain), tmp_path)
        monkeypatch.undo()
    os.close(master)
    assert [type(part).__name__ for part in found] == [reader, view]


def test_no_history_is_kept_if_that_is_not_wanted(tmp_path: Path) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        for place in (None, tmp_path / "history"):
            reader = PromptReader(place)
            keys.send_text("a secret\r")
            assert reader.read() == "a secret"
    assert (tmp_path / "history").read_text().count("+a secret\n") == 1
