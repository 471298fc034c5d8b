"""Growing Markdown: what is finished is handed out once, in order, and never changes again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.chat.markdown import PARSER, MarkdownStream, Piece, settled

from .documents import EVERYTHING, documents


def stream(text: str, step: int) -> tuple[list[Piece], list[Piece]]:
    """What was handed out on the way, and at the end."""
    markdown, pieces = MarkdownStream(), list[Piece]()
    for i in range(0, len(text), step):
        pieces += markdown.push(text[i : i + step])
    return pieces, markdown.finish()


def source_lines(pieces: list[Piece]) -> list[str]:
    """The lines that the pieces stand for, each counted where it is first handed out."""
    lines: list[str] = []
    for piece in pieces:
        blocks = [token for token in PARSER.parse(piece.source) if token.level == 0]
        if blocks and blocks[0].type == "fence":
            lines += blocks[0].content.split("\n")[piece.shown : -1]
        else:
            lines += piece.source.split("\n")
    return [line for line in lines if line.strip()]


def test_a_block_is_finished_when_the_next_one_has_begun() -> None:
    markdown = MarkdownStream()
    assert markdown.push("one\n\n") == []
    assert markdown.push("two") == []
    assert markdown.push("\n") == [Piece("one\n\n")]
    assert markdown.finish() == [Piece("two\n")]


def test_an_item_is_finished_when_the_next_one_has_begun_and_the_rest_is_glued_to_it() -> None:
    pieces, rest = stream("- one\n- two\n  more\n\nwords\n", 1)
    assert pieces == [Piece("- one\n"), Piece("- two\n  more\n\n", glued=True)]
    assert rest == [Piece("words\n")]


def test_two_lists_are_not_glued() -> None:
    pieces, rest = stream("- one\n1. two\n2. three\n", 1)
    assert pieces == [Piece("- one\n"), Piece("1. two\n")]
    assert rest == [Piece("2. three\n", glued=True)]


def test_lists_with_words_between_are_not_one_though_they_came_at_once() -> None:
    pieces, _ = stream("- one\n\nwords\n\n- two\n- three\n", 10_000)
    assert pieces == [Piece("- one\n\n"), Piece("words\n\n"), Piece("- two\n")]


def test_code_is_finished_line_by_line_and_keeps_what_its_colours_depend_on() -> None:
    pieces, rest = stream("```py\n'''a\nb'''\n```\n", 1)
    assert pieces == [Piece("```py\n'''a\n"), Piece("```py\n'''a\nb'''\n", glued=True, shown=1)]
    assert source_lines(rest) == []


@pytest.mark.parametrize("end", ["", "\n"])
def test_code_that_is_never_closed_ends_with_its_last_line(end: str) -> None:
    pieces, rest = stream(f"```\na\nb{end}", 1)
    assert source_lines(pieces + rest) == ["a", "b"]
    assert sum(piece.source.count("\n\n") for piece in rest) == 0


def test_half_a_line_finishes_nothing() -> None:
    markdown = MarkdownStream()
    markdown.push("words\n")
    for piece in ("#", "# ", "hashtag", " and more"):
        assert markdown.push(piece) == []
    assert markdown.finish() == [Piece("words\n"), Piece("## hashtag and more")]


def test_dashes_under_words_make_no_heading_of_them() -> None:
    assert stream("words\n---\n", 1)[0] == [Piece("words\n")]


def test_the_open_piece_is_what_was_not_handed_out() -> None:
    markdown = MarkdownStream()
    assert markdown.open is None
    markdown.push("done\n\n- one\n- two\n  mo")
    assert markdown.open == Piece("- two\n  mo", glued=True)
    markdown.push("re\n\n```py\nx = 1\ny =")
    assert markdown.open == Piece("```py\nx = 1\ny =", glued=True, shown=1)


def test_a_new_text_begins_after_finish() -> None:
    markdown = MarkdownStream()
    markdown.push("- one\n- two")
    markdown.finish()
    assert markdown.open is None
    markdown.push("words")
    assert markdown.open == Piece("words")


@pytest.mark.parametrize(
    ("growing", "shown"),
    [
        ("words\n-", "words"),
        ("words\n12.", "words"),
        ("words\n```", "words"),
        ("words\n```pyth", "words"),
        ("words **", "words "),
        ("words **stro", "words **stro**"),
        ("words **strong*", "words **strong**"),
        ("words **strong**", "words **strong**"),
        ("words `co", "words `co`"),
        ("words `code`", "words `code`"),
        ("2 * 3", "2 * 3"),
        ("```py\nx = '`", "```py\nx = '`"),
        ("finished **", "finished "),
    ],
)
def test_marks_that_may_come_to_nothing_are_not_shown(growing: str, shown: str) -> None:
    assert settled(growing) == shown


@pytest.mark.parametrize("step", [1, 3, 7, 10_000])
def test_everything_is_handed_out_once_and_in_order(step: int) -> None:
    pieces, rest = stream(EVERYTHING, step)
    fences = ("```", "~~~")
    lines = [line for line in EVERYTHING.split("\n") if line.strip()]
    want = [line for line in lines if not line.startswith(fences)]
    assert source_lines(pieces + rest) == want


@given(documents, st.integers(1, 9))
def test_no_text_is_lost_or_repeated(text: str, step: int) -> None:
    pieces, rest = stream(text, step)
    words = [word for line in text.split("\n") for word in line.split() if word.isalnum()]
    handed = [word for line in source_lines(pieces + rest) for word in line.split()]
    fence_words = {"py"}
    assert [w for w in handed if w.isalnum() and w not in fence_words] == [
        w for w in words if w not in fence_words
    ]


@given(documents, st.integers(1, 9), st.integers(1, 9))
def test_how_the_text_is_cut_does_not_matter(text: str, step: int, other: int) -> None:
    (pieces, rest), (others, other_rest) = stream(text, step), stream(text, other)
    assert source_lines(pieces + rest) == source_lines(others + other_rest)
