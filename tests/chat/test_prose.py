"""Markdown on a screen: every word is there, and no line is too long."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from dflash_mlx.chat.markdown import Piece
from dflash_mlx.chat.prose import Prose

from .documents import EVERYTHING, documents

PROSE = Prose(Console(file=io.StringIO(), width=80))


def lines(source: str, width: int = 80, shown: int = 0, wrap_code: bool = True) -> list[Text]:
    return PROSE.lines(Piece(source, shown=shown), width, wrap_code=wrap_code)


def plain(source: str, width: int = 80, shown: int = 0) -> list[str]:
    return [line.plain.rstrip() for line in lines(source, width, shown)]


def styles(source: str) -> set[tuple[str, str]]:
    """Each stretch of text with its style."""
    return {
        (line.plain[span.start : span.end], str(span.style))
        for line in lines(source)
        for span in line.spans
        if str(span.style)
    }


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a\nb", ["a", "b"]),  # as written: a poem, an address
        ("# Title", ["Title"]),
        ("<b>bold</b> <br>", ["<b>bold</b> <br>"]),
        ("<div>\nblock\n</div>", ["<div>", "block", "</div>"]),
        ("[ref]: http://a.b", ["[ref]: http://a.b"]),
        ("[text](http://a.b)", ["text (http://a.b)"]),
        ("<http://a.b>", ["http://a.b"]),
        ("![alt](pic.png) after", ["alt (pic.png) after"]),
        ("![](pic.png)", ["pic.png"]),
        ("3. three\n3. three again", ["3. three", "3. three again"]),  # as numbered
        ("9) nine", ["9) nine"]),
        ("- a\n  - b\n    1. c", ["• a", "  • b", "    1. c"]),
        ("- a\n\n  more", ["• a", "", "  more"]),
        ("-", ["•"]),
        ("> a\n>\n> b", ["▌ a", "▌", "▌ b"]),
        ("    code", ["code"]),
        ("```\n\na\n\n  b\n\n```", ["", "a", "", "  b", ""]),
        ("```", []),
        ("~~~ unknown-language\nx\n~~~", ["x"]),
        ("&lt;tag&gt; \\*star\\*", ["<tag> *star*"]),
    ],
)
def test_what_is_shown_of(source: str, shown: list[str]) -> None:
    assert plain(source) == shown


def test_emphasis_and_code_have_their_styles_also_inside_one_another() -> None:
    assert styles("**strong `code`** *em* ~~gone~~") >= {
        ("strong ", "bold"),
        ("code", "bold cyan"),
        ("em", "italic"),
        ("gone", "strike"),
    }


def test_code_is_coloured_by_its_language() -> None:
    assert len(styles("```python\nreturn 'text'\n```")) > 1


def test_lines_of_code_that_were_shown_are_left_out_but_colour_the_rest() -> None:
    source = '```python\n"""Many\nlines."""\nx = 1\n```'
    assert plain(source, shown=1) == ['lines."""', "x = 1"]
    whole, rest = lines(source), lines(source, shown=1)
    assert [line.spans for line in rest] == [line.spans for line in whole[1:]]


def test_a_long_line_of_code_is_cut_anywhere_or_left_whole() -> None:
    source = "```\n" + "word " * 5 + "\n```"
    assert [line.plain for line in lines(source, 10)] == ["word word ", "word word ", "word "]
    assert [line.plain for line in lines(source, 10, wrap_code=False)] == ["word " * 5]


def test_a_table_keeps_its_columns_and_their_sides() -> None:
    assert plain("| a | num |\n|---|---:|\n| x | 1 |\n| long | 22 |", 40) == [
        " a      num",
        " ──────────",
        " x        1",
        " long    22",
    ]


def test_a_table_that_is_too_wide_becomes_one_cell_a_line() -> None:
    header = "| " + " | ".join("abcdefgh") + " |\n" + "|---" * 8 + "|\n"
    row = "| " + " | ".join(f"value {n}" for n in range(8)) + " |\n"
    assert plain(header + row, 40)[:2] == ["a: value 0", "b: value 1"]


def test_wide_letters_take_two_cells() -> None:
    assert plain("漢字漢字漢字", 8) == ["漢字漢字", "漢字"]


@pytest.mark.parametrize("width", [2, 7, 39, 79, 199])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    widest = max(line.cell_len for line in lines(EVERYTHING, width))
    assert widest <= width


@given(documents, st.integers(20, 60))
def test_no_word_is_lost(text: str, width: int) -> None:
    shown = " ".join(plain(text, width))
    for word in text.replace("py\n", "\n").split():
        if word.isalpha() and word.isascii():
            assert word in shown
