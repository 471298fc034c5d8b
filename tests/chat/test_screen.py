"""A reply on a terminal: what a person sees at every moment, and when it is over."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.chat import screen
from dflash_mlx.chat.canvas import Canvas
from dflash_mlx.chat.screen import ScreenView

from .documents import EVERYTHING, documents
from .glass import Glass
from .play import events

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(autouse=True)
def _draw_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_PAUSE", 0.0)


def view_on(glass: Glass, **arguments: bool) -> ScreenView:
    console = glass.console()
    return ScreenView(console, Canvas(console, lambda: glass.size, glass.environment), **arguments)


def shown(text: str, step: int = 6, columns: int = 80, **arguments: bool) -> list[str]:
    """The screen after a reply that came in pieces of `step` characters."""
    glass = Glass(columns)
    view = view_on(glass, **arguments)
    with view.reply():
        for event in events(text, step):
            view.show(event)
    return glass.lines


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_everything_looks_as_in_the_snapshot(columns: int) -> None:
    """`python -m tests.chat.test_screen` writes the snapshots anew, to be looked at."""
    expected = (SNAPSHOTS / f"everything-{columns}.txt").read_text(encoding="utf-8")
    assert shown(EVERYTHING, columns=columns) == expected.rstrip("\n").split("\n")


@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_how_the_reply_was_cut_leaves_no_trace(step: int) -> None:
    assert shown(EVERYTHING, step) == shown(EVERYTHING)


@settings(max_examples=25)
@given(documents, st.integers(1, 40), st.integers(24, 60))
def test_nor_does_it_for_any_mixture(text: str, step: int, columns: int) -> None:
    assert shown(text, step, columns) == shown(text, 10_000, columns)


@pytest.mark.parametrize("marks", ["```", "~~~~"])
def test_what_follows_code_is_apart_from_it_from_its_first_letter_on(marks: str) -> None:
    """And no longer taken for code: its emphasis is shown as such."""
    glass = Glass()
    view = view_on(glass)
    with view.reply():
        for event in events(f"{marks}\ncode\n{marks}\n\nwords and **more words", 3):
            view.show(event)
            if "wor" in glass.text:
                assert glass.lines[:2] == ["code", ""]
                assert "*" not in glass.text


@pytest.mark.parametrize("rows", [8, 60])
def test_at_no_moment_is_a_word_missing_or_there_twice(rows: int) -> None:
    """Every word of the text is unlike the others. On a low screen a tall piece shows its end."""
    number = iter(range(10_000))
    text = re.sub(r"(?<!`)\b[a-z]{3,}", lambda _: f"w{next(number)}w", EVERYTHING)
    glass, seen = Glass(120, rows), set[str]()
    view = view_on(glass)
    with view.reply():
        for event in events(text, 5):
            view.show(event)
            words = re.findall(r"w\d+w", glass.text)
            assert len(words) == len(set(words))
            if rows == 60:
                assert seen <= set(words)
                seen |= set(words)
    assert re.findall(r"w\d+w", glass.text) == re.findall(r"w\d+w", text)


@pytest.mark.parametrize("reflows", [True, False])
def test_windows_of_all_widths_during_one_reply(reflows: bool) -> None:
    text = "\n\n".join(f"paragraph {n} " + f"p{n}p " * 30 for n in range(4))
    glass = Glass(90, 60, reflows=reflows)
    view = view_on(glass)
    with view.reply():
        for count, event in enumerate(events(text, 40)):
            view.show(event)
            if count % 3 == 2:
                glass.resize((50, 120, 40, 90)[count // 3 % 4])
    joined = "".join(glass.lines).replace(" ", "")
    for n in range(4):
        assert joined.count(f"paragraph{n}") == 1
        if reflows:  # a terminal that crops has cut off some of what was there
            assert joined.count(f"p{n}p") == 30


def test_thinking_is_one_line_that_counts_its_tokens() -> None:
    glass = Glass()
    view = view_on(glass)
    with view.reply():
        thought, answer = "a long thought\n\nof two paragraphs", "The answer."
        said = events(f"{thought}</think>{answer}", 5)
        view.show(said[0])
        assert glass.lines == ["thinking ... 5 tokens"]
        for event in said[1:]:
            view.show(event)
    assert glass.lines == [f"thinking ... {len(thought)} tokens", "", "The answer."]


def test_thinking_may_be_shown_as_it_comes() -> None:
    assert shown("- one\n- two</think>The answer.", show_thinking=True) == [
        "• one",
        "• two",
        "",
        "The answer.",
    ]


def test_a_reply_stopped_while_thinking_keeps_the_count() -> None:
    assert shown("only a thought</think>") == ["thinking ... 14 tokens"]


def test_a_reply_of_nothing_leaves_no_line() -> None:
    assert shown("") == [""]


def test_what_would_drive_the_terminal_is_shown_instead() -> None:
    assert shown("a\x1b[2Jb\x07c\x9bd\r\n\x7fe") == ["a␛[2Jb␇c\ufffdd", "␡e"]


def test_the_reading_of_a_long_prompt_is_shown_and_vanishes() -> None:
    glass = Glass()
    view = view_on(glass)
    with view.reply():
        view.progress(64, 200)
        assert glass.lines == ["reading the prompt: 64 of 200 tokens"]
        view.progress(200, 200)
        for event in events("Hello", 5):
            view.show(event)
        assert glass.lines == ["Hello"]


def test_words_of_the_program_wrap_between_words() -> None:
    glass = Glass(40)
    view = view_on(glass)
    view.say("a line of the program that is longer than forty columns")
    view.complain("[red]it broke[/red]")
    assert glass.lines == [
        "a line of the program that is longer",
        "than forty columns",
        "error: [red]it broke[/red]",
    ]


if __name__ == "__main__":
    screen._PAUSE = 0.0
    SNAPSHOTS.mkdir(exist_ok=True)
    for width in (40, 80, 200):
        text = "\n".join(shown(EVERYTHING, columns=width))
        (SNAPSHOTS / f"everything-{width}.txt").write_text(f"{text}\n", encoding="utf-8")
    sys.stdout.write("Look at them.\n")
