"""Markdown that is still being written, cut into pieces as soon as they can change no more.

A reply grows at its end. Of what CommonMark calls its blocks, all but the last are finished; of a
list, so are all items but the last; of a code block, all lines but the last. Finished pieces are
handed out once and in order; only the open one may still change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

# HTML and link definitions would vanish from a screen, and a line of dashes under a text is rather
# a rule, or the beginning of a list, than a heading.
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
PARSER.disable(["reference", "lheading"])

_ONLY_MARKS = re.compile(
    r"(^|\n)[ \t]*([-*+>#=_~`|: ]+ | \d{1,9}[.)]? | (`{3}|~{3})[^`\n]*)\Z", re.VERBOSE
)
_OPENING_MARKS = re.compile(r"(?:(?<=\s)|^)[*_~`]+\Z")


@dataclass(frozen=True)
class Piece:
    """Markdown that can be shown by itself: a block, an item of a list, or lines of code.

    `glued`: it goes on with the list or the code before it, without a blank line between. Code
    comes whole, for its highlighting, with the number of its lines that were `shown` already.
    """

    source: str
    glued: bool = False
    shown: int = 0


class MarkdownStream:
    """Text in, piece by piece; out come the finished pieces of its Markdown."""

    def __init__(self) -> None:
        self._source = ""  # the blocks, or what is left of the list, that are not finished
        self._glued = False  # the first of them is the rest of a list
        self._shown = 0  # lines of it that were handed out, if it is code

    def push(self, text: str) -> list[Piece]:
        """Take in more text; return what became finished."""
        self._source += text
        if "\n" not in text:  # whole lines decide, since half a line may become anything
            return []
        return self._cut(self._source[: self._source.rindex("\n") + 1])

    @property
    def open(self) -> Piece | None:
        """What is not finished, as it can be shown for now."""
        source = settled(self._source)
        return self._piece(source) if source.strip() else None

    def finish(self) -> list[Piece]:
        """The text is over: return the rest."""
        pieces = self._cut(self._source if self._source.endswith("\n") else self._source + "\n")
        rest = self._piece(self._source) if self._source.strip() else None
        self._source, self._glued, self._shown = "", False, 0
        return pieces if rest is None else [*pieces, rest]

    def _piece(self, source: str) -> Piece:
        return Piece(source, self._glued or self._shown > 0, self._shown)

    def _cut(self, whole_lines: str) -> list[Piece]:
        """Take the finished pieces off the source, of which `whole_lines` is the beginning."""
        pieces: list[Piece] = []
        while True:
            tokens = [token for token in PARSER.parse(whole_lines) if token.map]
            blocks = [token for token in tokens if token.level == 0]
            if not blocks:
                return pieces
            lines = whole_lines.split("\n")
            end = _end_of_first(tokens, blocks, lines)
            if blocks[0].type == "fence":
                pieces += self._code(whole_lines, blocks[0], end is not None)
            if end is None:
                return pieces
            first, whole_lines = "\n".join(lines[:end]) + "\n", "\n".join(lines[end:])
            if blocks[0].type != "fence":
                pieces.append(self._piece(first))
            self._source = self._source[len(first) :]
            goes_on = len(blocks) == 1 or end < _line(blocks[1])
            self._glued = goes_on and blocks[0].type.endswith("list_open")
            self._shown = 0

    def _code(self, source: str, fence: Token, finished: bool) -> list[Piece]:
        """The lines of a code block at the beginning that were not handed out yet."""
        lines = fence.content.count("\n")
        if lines == self._shown:
            return []
        end = fence.map[1] if finished and fence.map else None
        piece = self._piece("\n".join(source.split("\n")[:end]))
        self._shown = lines
        return [piece]


def _line(token: Token) -> int:
    """The line that a block begins at."""
    return token.map[0] if token.map else 0


def _end_of_first(tokens: list[Token], blocks: list[Token], lines: list[str]) -> int | None:
    """The line after the first finished block or item; None where nothing is finished."""
    items = [token for token in tokens if token.level == 1 and token.type == "list_item_open"]
    if blocks[0].type.endswith("list_open"):
        end = blocks[0].map[1] if blocks[0].map else 0
        items = [item for item in items if _line(item) < end]
        if len(items) > 1:
            return _line(items[1])
    if len(blocks) > 1:
        return _line(blocks[1])
    return blocks[0].map[1] if blocks[0].map and _is_closed(blocks[0], lines) else None


def _is_closed(block: Token, lines: list[str]) -> bool:
    """Whether a block is code whose closing marks have come."""
    if block.type != "fence" or not block.map:
        return False
    first, end = block.map
    last = lines[end - 1]
    marks = last.strip()
    closes = marks.startswith(block.markup) and not marks.strip(block.markup[0])
    return closes and end - 1 > first and len(last) - len(last.lstrip()) < 4


def settled(source: str) -> str:
    """Growing Markdown as it will most likely look: without marks that may come to nothing.

    A last line of marks alone is left out, for a dash may become a list or a rule, and so is the
    first of a code block; emphasis and code within the last line are closed.
    """
    source = _ONLY_MARKS.sub("", source)
    last = source.rsplit("\n", 1)[-1]
    if source.lstrip().startswith(("```", "~~~")):  # in code, marks are just code
        return source
    if marks := _OPENING_MARKS.search(last):
        return source.removesuffix(marks[0])
    if last.count("`") % 2:
        return source + "`"
    # A space ahead of the closing marks would keep them from closing anything.
    return source.rstrip(" *") + "**" if last.count("**") % 2 else source
