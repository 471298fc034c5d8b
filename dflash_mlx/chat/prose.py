"""Markdown as lines of a screen. Whatever the Markdown, no word of it is lost.

Rich has a Markdown of its own, which drops HTML and the targets of images, joins lines that the
author broke, and cannot begin in the middle of a list or of code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from markdown_it.tree import SyntaxTreeNode
from rich import box
from rich.cells import chop_cells
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from .markdown import PARSER, Piece

_STYLES = {
    "strong": "bold",
    "em": "italic",
    "s": "strike",
    "code_inline": "cyan",
    "h1": "bold underline",
    "quote": "dim",
    "marker": "bold cyan",
}
_NARROW_COLUMN = 8


class Prose:
    """Turns Markdown into lines of styled text, for the width and the colours of a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def lines(self, piece: Piece, width: int, *, wrap_code: bool = True) -> list[Text]:
        """The lines of a piece, each at most `width` cells wide.

        wrap_code: without it a line of code stays one line, however long, for the terminal to
        wrap, so that it can be copied as one.
        """
        blocks = SyntaxTreeNode(PARSER.parse(piece.source)).children
        code: list[Text] = []
        if blocks and blocks[0].type == "fence":
            code = self._code(blocks.pop(0), width if wrap_code else None, piece.shown)
        rest = self._blocks(blocks, width)  # wider than a very narrow screen, if deeply nested
        return [*code, *(row for line in rest for row in _fold(line, width))]

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], width: int) -> list[Text]:
        """Blocks one under the other, with blank lines between them unless in a tight list."""
        lines: list[Text] = []
        for node in nodes:
            if lines and not _is_tight(node):
                lines.append(Text())
            lines += self._block(node, width)
        return lines

    def _block(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        match node.type:
            case "paragraph":
                return self._wrap(_inline(node), width)
            case "heading":
                style = _STYLES["h1"] if node.tag == "h1" else "bold"
                return self._wrap(_inline(node, style), width)
            case "fence" | "code_block":
                return self._code(node, width)
            case "blockquote":
                inner = self._blocks(node.children, max(width - 2, 1))
                return _indent(inner, Text("▌ ", _STYLES["quote"]), Text("▌ ", _STYLES["quote"]))
            case "bullet_list" | "ordered_list":
                return [line for item in node.children for line in self._item(item, width)]
            case "hr":
                return [Text("─" * width, "dim")]
            case "table":
                return self._table(node, width)
            case _:
                return self._wrap(Text(node.content or _inline(node).plain), width)

    def _item(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        """A list's item: its bullet, or its number as it was written."""
        marker = Text(f"{node.info}{node.markup} " if node.info else "• ", _STYLES["marker"])
        space = Text(" " * marker.cell_len)
        inner = self._blocks(node.children, max(width - marker.cell_len, 1))
        return _indent(inner or [Text()], marker, space)

    def _code(self, node: SyntaxTreeNode, width: int | None, shown: int = 0) -> list[Text]:
        language = node.info.split(maxsplit=1)[0] if node.info.strip() else "text"
        syntax = Syntax("", language, theme="ansi_dark", background_color="default")
        code = syntax.highlight(node.content.removesuffix("\n"))
        code.remove_suffix("\n")
        count = node.content.count("\n") or int(bool(node.content))
        lines = [*code.split("\n", allow_blank=True), *[Text()] * count][shown:count]
        for line in lines:
            line.expand_tabs(4)
        if width is None:
            return lines
        return [row for line in lines for row in _fold(line, width)]

    def _table(self, node: SyntaxTreeNode, width: int) -> list[Text]:
        rows = [row.children for part in node.children for row in part.children]
        cells = [[_inline(cell) for cell in row] for row in rows]
        header, body = cells[0], cells[1:]
        if width < _NARROW_COLUMN * len(header):
            return self._records(header, body, width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for name, cell in zip(header, rows[0], strict=True):
            align = str(cell.attrs.get("style", "")).removeprefix("text-align:")
            justify = "right" if align == "right" else "center" if align == "center" else "left"
            table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in body:
            table.add_row(*row)
        options = self._console.options.update(width=width, height=None)
        rendered = self._console.render_lines(table, options, pad=False)
        lines = [Text.assemble(*((s.text, s.style or "") for s in line)) for line in rendered]
        for line in lines:
            line.rstrip()
        return [line for line in lines if line]

    def _records(self, header: list[Text], body: list[list[Text]], width: int) -> list[Text]:
        """A table that is too wide, one cell a line, under the name of its column."""
        lines: list[Text] = []
        for row in body or [[Text() for _ in header]]:
            if lines:
                lines.append(Text("─" * width, "dim"))
            for name, cell in zip(header, row, strict=False):
                label = name.copy()
                label.stylize("bold")
                lines += self._wrap(Text.assemble(label, ": ", cell), width)
        return lines

    def _wrap(self, text: Text, width: int) -> list[Text]:
        return list(text.wrap(self._console, width, overflow="fold")) or [Text()]


def _fold(line: Text, width: int) -> Sequence[Text]:
    """Cut a line of code where the terminal would, in the middle of a word too."""
    ends = list(accumulate(map(len, chop_cells(line.plain, width))))
    return list(line.divide(ends[:-1]))


def _is_tight(node: SyntaxTreeNode) -> bool:
    """Whether a block follows the one before it directly, as in a list without blank lines."""
    before = node.previous_sibling
    inside = node.parent is not None and node.parent.type == "list_item"
    return inside and before is not None and (before.hidden or before.type != "paragraph")


def _indent(lines: Sequence[Text], first: Text, rest: Text) -> list[Text]:
    """Put `first` ahead of the first line and `rest` ahead of the others."""
    indented = [Text.assemble(rest if i else first, line) for i, line in enumerate(lines)]
    for line in indented:
        line.rstrip()
    return indented


def _inline(node: SyntaxTreeNode, style: str = "") -> Text:
    """The text of a node with its emphasis, links with their targets, and lines as written."""
    style = f"{style} {_STYLES.get(node.type, '')}".strip()
    if node.type in ("softbreak", "hardbreak"):
        return Text("\n")
    text = Text().join(map(partial(_inline, style=style), node.children))
    text = text or Text(node.content, style)
    if node.type in ("link", "image"):
        target = str(node.attrs.get("href") or node.attrs.get("src") or "")
        if target and target != text.plain:
            text.append(f" ({target})" if text else target, "dim underline")
    return text
