"""The open rows of a screen are redrawn in place; finished ones are written once and stay."""

from __future__ import annotations

import pytest
from rich.text import Text

from dflash_mlx.chat.canvas import Canvas, reflows

from .glass import Glass

KINDS = pytest.mark.parametrize("kind", [True, False], ids=["reflowing", "cropping"])


def canvas_on(glass: Glass) -> Canvas:
    return Canvas(glass.console(), lambda: glass.size, glass.environment)


def texts(*lines: str) -> list[Text]:
    return [Text(line) for line in lines]


def words(count: int) -> list[str]:
    return [f"word{n}" for n in range(count)]


def test_open_lines_are_replaced_and_finished_ones_stay() -> None:
    glass = Glass()
    canvas = canvas_on(glass)
    canvas.draw([], texts("a", "b"))
    canvas.draw([], texts("a", "bc", "d"))
    assert glass.lines == ["a", "bc", "d"]
    canvas.draw(texts("A", "B"), texts("open"))
    assert glass.lines == ["A", "B", "open"]
    canvas.draw(texts("closed"), [])
    canvas.draw([], texts("new"))
    assert glass.lines == ["A", "B", "closed", "new"]


@pytest.mark.parametrize("now", [["a"], ["a", "b"], ["x"], []])
def test_fewer_open_lines_leave_nothing_behind(now: list[str]) -> None:
    glass = Glass()
    canvas = canvas_on(glass)
    canvas.draw([], texts("a", "b", "long line c"))
    canvas.draw([], texts(*now))
    assert glass.lines == (now or [""])
    canvas.draw(texts("after"))
    assert glass.lines == ["after"]


def test_open_lines_that_become_finished_as_they_are_do_not_move() -> None:
    glass = Glass()
    canvas = canvas_on(glass)
    canvas.draw([], texts("a", "b"))
    canvas.draw(texts("a", "b"))
    canvas.draw(texts("c"))
    assert glass.lines == ["a", "b", "c"]


def test_what_did_not_change_is_not_written_again() -> None:
    glass = Glass()
    canvas = canvas_on(glass)
    canvas.draw([], texts("a long first line", "second"))
    before = len(glass.getvalue())
    canvas.draw([], texts("a long first line", "second"))
    assert len(glass.getvalue()) == before
    canvas.draw([], texts("a long first line", "second grows"))
    assert "first" not in glass.getvalue()[before:]


def test_open_lines_of_more_than_a_screen_show_their_end_and_lose_nothing() -> None:
    glass = Glass(rows=5)
    canvas = canvas_on(glass)
    for count in range(1, 12):
        now = [f"{word} of {count}" for word in words(count)]
        canvas.draw([], texts(*now))
        assert glass.lines == now[-4:]
    canvas.draw(texts(*words(12)))
    assert glass.lines == words(12)


def test_a_finished_line_longer_than_the_screen_is_the_terminals_to_wrap() -> None:
    for length in (19, 20, 21, 40, 45):
        glass = Glass(columns=20)
        canvas = canvas_on(glass)
        canvas.draw([], texts("x" * 18))
        canvas.draw(texts("x" * length), texts("open"))
        # behind a full row the cursor waits on its last cell, which would be erased
        assert f"{'x' * length}\x1b[K" not in glass.getvalue() or length < 20
        assert "".join(glass.lines) == "x" * length + "open"
        canvas.draw(texts("x" * length))
        canvas.draw(texts("end"))
        assert "".join(glass.lines) == "x" * length + "x" * length + "end"


@KINDS
def test_a_narrower_window_repeats_and_loses_nothing(kind: bool) -> None:
    glass = Glass(columns=60, reflows=kind)
    canvas = canvas_on(glass)
    canvas.draw(texts("finished before"), texts("o" * 50, "p" * 55, "q" * 10))
    glass.resize(30)
    canvas.draw([], texts("o" * 29, "o" * 21, "p" * 29, "p" * 26, "q" * 11))
    assert glass.lines[0] == "finished before"
    assert "".join(glass.lines[1:]) == "o" * 50 + "p" * 55 + "q" * 11


@KINDS
def test_a_wider_window_repeats_and_loses_nothing(kind: bool) -> None:
    glass = Glass(columns=30, reflows=kind)
    canvas = canvas_on(glass)
    canvas.draw(texts("finished before"), texts("o" * 29, "o" * 21))
    glass.resize(60)
    canvas.draw([], texts("o" * 50, "p"))
    assert glass.lines == ["finished before", "o" * 50, "p"]


@pytest.mark.parametrize(
    ("environment", "does"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(379)"}, False),
        ({"TERM": "linux"}, False),
        ({"TERM": "screen"}, False),
        ({"TERM": "screen-256color", "TMUX": "/tmp/tmux"}, True),
    ],
)
def test_which_terminals_reflow(environment: dict[str, str], does: bool) -> None:
    assert reflows(environment) is does


def test_colours_are_written_and_with_no_color_are_not() -> None:
    glass = Glass()
    line = [Text("red", "red")]
    canvas_on(glass).draw(line)
    assert "\x1b[31m" in glass.getvalue()
    plain = Glass()
    Canvas(plain.console(no_color=True), lambda: plain.size, plain.environment).draw(line)
    assert "\x1b[31m" not in plain.getvalue()
