"""Markdown as models write it, for tests: one of everything, and random mixtures."""

from __future__ import annotations

from hypothesis import strategies

EVERYTHING = """\
# A heading of *some* kind

Plain words, **strong words with `code` inside**, ~~struck~~ and a [link](http://target.example/a).
A second line, with <b>HTML</b> and ![a picture](picture.png).
- first item
- second item
  that goes on

  and has a second paragraph
  1. inner one
  2. inner two
     ```c
     int inside = 1;
     ```
3) three
4) four

```python
def function(argument):
    \"\"\"Many
    lines.\"\"\"

    return "a string that is long" + "and goes on beyond the edge of a screen of forty columns"
```
After the code.

| name | figure | remark |
|:-----|-------:|:------:|
| one  | 1      | a remark with several words in it |
| two  | **22** | short |

> quoted words
> - quoted item
lazily continued

***

    code by indentation

[reference]: http://reference.example
<div>block of HTML</div>

Some kanji: 漢字かな交じり文, and a party 🎉 at the end.

```
never closed
"""

BLOCKS = (
    "words of a paragraph",
    "two lines\nof words",
    "# heading",
    "## heading **strong** ##",
    "- item\n- item two\n- item three",
    "* starred\n\n* loosely",
    "1. one\n2. two\n\n   more of two\n3. three",
    "7) seven\n8) eight",
    "- outer\n  - inner\n    - innermost\n- outer again",
    "```\ncode\n\n  indented\n```",
    "~~~py\nx = 1\n~~~",
    "    indented code",
    "> quote\n> more\nlazy",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "---",
    "text\n---",
    "text\n===",
    "-",
    "#",
    "```",
    "|",
    "1.",
    "**open",
    "`open",
    "[link](http://a.b)",
    "<b>html</b>",
    "[ref]: http://c.d",
    "漢字 🎉 à",
    "",
)

documents = strategies.lists(
    strategies.tuples(strategies.sampled_from(BLOCKS), strategies.sampled_from(("\n", "\n\n"))),
    max_size=8,
).map(lambda blocks: "".join(block + end for block, end in blocks))
