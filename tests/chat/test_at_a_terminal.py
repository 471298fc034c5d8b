"""Every command and every key of the chat, at a terminal, with a tiny pair that talks letters."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_mlx.chat.slash import COMMANDS

from .pairs import write_talking_pair
from .terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, LEFT, TAB, UP, Terminal

STATE = Path(".local/share/dflash-mlx")


@dataclass
class Talk:
    """A chat that goes on; each test says what it needs of it."""

    terminal: Terminal
    home: Path
    pair: Path

    def ask(self, line: str) -> str:
        """Type a line, send it, wait for the next prompt; what came after the line."""
        return self.after(line + ENTER).removeprefix(line).removeprefix("\n")

    def after(self, keys: str) -> str:
        """Press keys that lead to the next prompt; what is shown from the one before it on."""
        prompts = self.prompts
        self.terminal.type(keys)
        self.terminal.wait_until(lambda: self.prompts > prompts and self.line == ">", "prompt")
        lines = self.terminal.lines
        last, _ = [place for place, line in enumerate(lines) if line.startswith(">")][-2:]
        return "\n".join(lines[last:-1]).removeprefix(">").strip()

    def begin(self, message: str) -> None:
        """Send a message that was not sent before, and wait for the first words of its reply."""
        self.terminal.type(message + ENTER)
        begun = re.compile(f"> {message}\n[a-z ]{{3}}")
        self.terminal.wait_until(lambda: begun.search(self.terminal.text) is not None)

    @property
    def prompts(self) -> int:
        return sum(line.startswith(">") for line in self.terminal.lines)

    @property
    def line(self) -> str:
        """The line where the cursor is."""
        return self.terminal.lines[-1]

    def wait_for_line(self, line: str) -> None:
        self.terminal.wait_until(lambda: self.line == line, f"line {line!r}")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    home, pair = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("pair")
    write_talking_pair(pair)
    (home / STATE).mkdir(parents=True)
    (home / STATE / "history").write_text("\n# 2026-11-30 12:00:00\n+said last time\n")
    (home / "xclip").write_text(f"#!/bin/sh\ncat > {home}/copied\n")
    (home / "xclip").chmod(0o755)
    command = ["-m", "dflash_mlx", "chat", "--model", str(pair / "target"), "--draft-model"]
    command += [str(pair / "drafter"), "--exact", "--max-tokens", "12", "--seed", "1"]
    terminal = Terminal(
        command, home=home, columns=100, rows=40, env={"DISPLAY": ":0"}, path=[home]
    )
    talk = Talk(terminal, home, pair)
    talk.wait_for_line(">")
    yield talk
    terminal.type(CTRL_D)
    assert terminal.leave() == 0
    terminal.close()


@pytest.fixture
def talk(running: Talk) -> Talk:
    """The running chat at an empty prompt, with a new conversation."""
    running.ask("/new")
    return running


# Commands


def test_help_lists_every_command_and_the_keys(talk: Talk) -> None:
    shown = talk.ask("/help")
    for command in COMMANDS:
        assert f"\n{command.name} " in f"\n{shown}"
        assert command.help in " ".join(shown.split())
    for key in ("Enter", "Alt-Enter", "Ctrl-J", "Up", "Tab", "Ctrl-C", "Ctrl-D"):
        assert key in shown


def test_a_message_is_answered_with_one_line_of_statistics(talk: Talk) -> None:
    answer, _, statistics = talk.ask("hello").partition("\n")
    assert re.fullmatch("[a-z ]{1,12}", answer)
    for part in (
        "tokens/s",
        "acceptance length",
        ", block auto",
        "12 tokens, cut off",
        "prompt",
        "peak",
    ):
        assert part in " ".join(statistics.split())
    for row in statistics.split("\n"):  # broken between its parts, if at all
        assert not row.startswith("·")
        assert not row.endswith("·")


def test_new_forgets_the_conversation(talk: Talk) -> None:
    first = talk.ask("hello").split("\n")[0]
    assert talk.ask("hello").split("\n")[0] != first
    assert talk.ask("/new") == "A new conversation."
    assert talk.ask("hello").split("\n")[0] == first


def test_system_shows_and_changes_the_instructions(talk: Talk) -> None:
    assert talk.ask("/system") == "The model's own instructions."
    without = talk.ask("hello").split("\n")[0]
    assert talk.ask("/system be brief") == "Instructions: be brief"
    talk.ask("/undo")
    assert talk.ask("hello").split("\n")[0] != without
    assert talk.ask("/new") == "A new conversation."
    assert talk.ask("/system") == "Instructions: be brief"
    assert talk.ask("/system default") == "The model's own instructions."


def test_set_shows_all_and_changes_one(talk: Talk) -> None:
    assert "\nmax-tokens          12  (default: to the context's end)\n" in talk.ask("/set")
    assert "\ntop-p               0.5  (default: 1.0)\n" in talk.ask("/set top_p 0.5")
    assert talk.ask("/set top-p") == "top-p 0.5"
    assert "\ntop-p               1.0\n" in talk.ask("/set top-p default")
    assert "show-thinking       on  (default: off)" in talk.ask("/set show-thinking on")
    talk.ask("/set show-thinking default")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/set top-p 3", "top_p must be above 0 and at most 1; it is 3.0."),
        ("/set top-p high", "top-p cannot be 'high'."),
        ("/set loop-stop maybe", "loop-stop cannot be 'maybe'."),
        ("/set block-size 99", "block_size 99 is more than the 8 rows"),
        ("/set colour red", "There is nothing named colour to set"),
        ("/frob", "There is no command /frob: /help lists the commands."),
        ("/retrry", "There is no command /retrry: did you mean /retry?"),
        ("/s", "/s may be /system or /set or /stats or /save."),
        ("/undo", "Nothing has been asked yet."),
        ("/retry", "Nothing has been asked yet."),
        ("/copy", "There is no answer to copy yet."),
        ("/load nothing", "There is no conversation named nothing"),
        ("/save a/b", "A name has up to 50 letters, digits, spaces"),
        ("/model no/such-model", "no/such-model"),
        ('/model "unclosed', "/model takes a name and perhaps a drafter"),
    ],
)
def test_a_mistake_is_one_line_and_the_chat_goes_on(talk: Talk, line: str, error: str) -> None:
    shown = " ".join(talk.ask(line).split())
    assert "error: " in shown
    assert error in shown


def test_stats_tell_all_about_the_last_reply(talk: Talk) -> None:
    assert talk.ask("/stats") == "Nothing was answered yet."
    talk.ask("hello")
    shown = talk.ask("/stats")
    assert "\ncontext " in shown
    assert "\naccepted at each place of a block: " in shown
    assert "\nseed 1" in shown


def test_undo_takes_the_last_question_back(talk: Talk) -> None:
    talk.ask("hello")
    second = talk.ask("again").split("\n")[0]
    assert talk.ask("/undo") == "Taken back: again"
    assert talk.ask("again").split("\n")[0] == second


def test_retry_answers_anew_and_at_temperature_0_says_that_it_cannot(talk: Talk) -> None:
    answer = talk.ask("hello").split("\n")[0]
    remark, again, *_ = talk.ask("/retry").split("\n")
    assert remark.startswith("At temperature 0 the answer stays the same")
    assert again == answer
    talk.ask("/set temperature 0.8")
    others = {talk.ask("/retry").split("\n")[0] for _ in range(2)}
    talk.ask("/set temperature default")
    assert len(others) == 2


def test_a_saved_conversation_is_loaded_and_goes_on(talk: Talk) -> None:
    talk.ask("hello")
    assert "first one.json" in "".join(talk.ask("/save first one").split("\n"))
    path = talk.home / STATE / "conversations" / "first one.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["messages"][0] == {"role": "user", "content": "hello"}
    second = talk.ask("again").split("\n")[0]
    talk.ask("/new")
    assert talk.ask("/load") == "first one"
    assert talk.ask("/load first one").startswith("Loaded first one, with 1 answer; the last")
    assert talk.ask("again").split("\n")[0] == second
    assert "Saved in" in talk.ask("/save")  # under the name that it has
    assert len(json.loads(path.read_text())["messages"]) == 4


def test_thinking_says_when_there_was_none(talk: Talk) -> None:
    talk.ask("hello")
    assert talk.ask("/thinking") == "The last reply came without thinking."


def test_copy_puts_the_last_answer_on_the_clipboard(talk: Talk) -> None:
    answer = talk.ask("hello").split("\n")[0]
    assert talk.ask("/copy") == f"Copied {len(answer.strip())} characters, by xclip."
    assert (talk.home / "copied").read_text() == answer.strip()


def test_model_shows_the_pair_and_loads_another_in_the_same_conversation(talk: Talk) -> None:
    assert talk.ask("/model") == "target with drafter"
    talk.ask("hello")
    second = talk.ask("again").split("\n")[0]
    talk.ask("/undo")
    target, drafter = talk.pair / "target", talk.pair / "drafter"
    assert talk.ask(f"/model {target} {drafter}").endswith("target with drafter")
    assert talk.ask("again").split("\n")[0] == second
    last = json.loads((talk.home / STATE / "last-pair.json").read_text())
    assert last == {"model": str(target), "draft_model": str(drafter)}


def test_a_path_is_no_command(talk: Talk) -> None:
    assert re.match("[a-z ]{1,12}\n", talk.ask("/etc/hosts"))


# Keys


def test_up_recalls_what_was_said_and_last_time_too(talk: Talk) -> None:
    talk.ask("hello")
    talk.terminal.type(UP)
    talk.wait_for_line("> hello")
    talk.terminal.type(UP)
    talk.wait_for_line("> /new")
    talk.terminal.type(UP * 200)
    talk.wait_for_line("> said last time")
    talk.terminal.type(CTRL_C)
    talk.wait_for_line(">")


def test_the_line_can_be_edited(talk: Talk) -> None:
    talk.terminal.type("/stts" + LEFT * 2 + "a")
    talk.wait_for_line("> /stats")
    assert talk.after(ENTER) == "/stats\nNothing was answered yet."


def test_tab_completes_commands_settings_and_names(talk: Talk) -> None:
    talk.terminal.type("/he" + TAB)
    talk.wait_for_line("> /help")
    talk.terminal.type(CTRL_C)
    talk.wait_for_line(">")
    talk.terminal.type("/set temp" + TAB)
    talk.wait_for_line("> /set temperature")
    assert talk.after(ENTER) == "/set temperature\ntemperature 0.0"
    talk.ask("/save known")
    talk.terminal.type("/load kn" + TAB)
    talk.wait_for_line("> /load known")
    talk.terminal.type(CTRL_C)
    talk.wait_for_line(">")


def test_a_paste_of_several_lines_is_one_message(talk: Talk) -> None:
    talk.terminal.paste("first\nsecond\n\nthird")
    talk.wait_for_line("  third")
    talk.after(ENTER)
    assert talk.ask("/undo") == "Taken back: first\nsecond\n\nthird"


def test_alt_enter_and_ctrl_j_begin_a_new_line(talk: Talk) -> None:
    talk.terminal.type("first" + ESCAPE + ENTER + "second\nthird")
    talk.wait_for_line("  third")
    talk.after(ENTER)
    assert talk.ask("/undo") == "Taken back: first\nsecond\nthird"


def test_ctrl_c_clears_the_line_and_on_an_empty_one_says_how_to_leave(talk: Talk) -> None:
    talk.terminal.type("half a thou")
    talk.wait_for_line("> half a thou")
    talk.terminal.type(CTRL_C)
    talk.wait_for_line(">")
    assert talk.after(CTRL_C) == "Ctrl-D or /exit leaves."


def test_ctrl_c_stops_the_reply_which_keeps_its_part(talk: Talk) -> None:
    talk.ask("/set max-tokens 900")
    talk.begin("stop this")
    shown = talk.after(CTRL_C)
    talk.ask("/set max-tokens 12")
    answer = shown.split("\n")[1]
    assert "interrupted" in " ".join(shown.split())
    talk.ask("/save stopped")
    saved = json.loads((talk.home / STATE / "conversations" / "stopped.json").read_text())
    assert saved["messages"][1]["content"].startswith(answer)


def test_what_is_typed_during_a_reply_is_not_shown_in_it_and_then_sent(talk: Talk) -> None:
    talk.ask("/set max-tokens 100")
    talk.begin("go on")
    said, prompts = len(talk.terminal.raw), talk.prompts
    talk.terminal.type("AHEAD")
    talk.terminal.wait_until(lambda: len(talk.terminal.raw) > said + 100)
    assert b"AHEAD" not in talk.terminal.raw
    talk.terminal.type(ENTER)
    talk.terminal.wait_until(lambda: talk.prompts == prompts + 2 and talk.line == ">")
    assert talk.ask("/undo") == "Taken back: AHEAD"
    talk.ask("/set max-tokens 12")


def test_the_contexts_end_is_announced_before_it_comes_and_when_it_is_there(talk: Talk) -> None:
    talk.ask("/set max-tokens default")
    talk.terminal.paste("x" * 960)
    talk.terminal.wait_until(lambda: "xxx" in talk.line)
    shown = " ".join(talk.after(ENTER).split())
    assert "context of 1024 tokens is full: /new begins afresh" in shown
    talk.ask("/new")
    talk.ask("/set max-tokens 12")
    talk.terminal.paste("x" * 850)
    talk.terminal.wait_until(lambda: "xxx" in talk.line)
    shown = " ".join(talk.after(ENTER).split())
    assert "of the 1024 tokens of the model's context; /new begins afresh" in shown
    talk.terminal.paste("x" * 200)
    talk.terminal.wait_until(lambda: "xxx" in talk.line)
    assert "start a new conversation" in " ".join(talk.after(ENTER).split())


def test_files_are_private(running: Talk) -> None:
    for name in ("history", "last-pair.json"):
        assert stat.S_IMODE((running.home / STATE / name).stat().st_mode) == 0o600
