"""`dflash-mlx chat` from outside: in a terminal for three turns, and in a pipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_mlx.api import load
from dflash_mlx.engine.options import Options
from tests.chat.pairs import write_talking_pair
from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.conftest import RunCli
from tests.tiny_folders import TinyPair

STATISTICS = "· seed "


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
    terminal = Terminal(command, home=tmp_path, columns=500)  # a reply is one line
    try:
        terminal.wait_for("leaves.\n>")
        terminal.type(CTRL_C)
        terminal.wait_for("Ctrl-D or /exit leaves.\n>")
        terminal.type("one" + ENTER)
        terminal.wait_for(STATISTICS)
        terminal.type("two" + ENTER)
        terminal.wait_until(lambda: re.search(r"> two\n\w{3}", terminal.text) is not None)
        terminal.type(CTRL_C)
        terminal.wait_for(", interrupted")
        terminal.type("three" + ENTER)
        terminal.wait_for(STATISTICS, count=3)
        terminal.type(CTRL_D)
        assert terminal.leave() == 0
        screen = terminal.text
    finally:
        terminal.close()

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


def test_an_error_in_a_pipe_ends_the_chat_with_its_exit_code(
    pair: TinyPair, run_cli: RunCli
) -> None:
    chat = run_cli("chat", *flags(pair), stdin="/newer\none\n", home=True)
    assert (chat.returncode, chat.stdout) == (2, "")
    assert chat.stderr == "error: There is no command /newer: did you mean /new?\n"
