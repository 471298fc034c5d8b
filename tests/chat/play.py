"""Plays a reply on the terminal, as if a model said it: `python -m tests.chat.play FILE STEP`.

The text comes in events of STEP characters. With `--wait`, each of them puts its number into the
title of the window and waits for Enter. Reasoning is what stands before `</think>`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from dflash_mlx.chat.canvas import Canvas
from dflash_mlx.chat.keyboard import no_echo
from dflash_mlx.chat.screen import ScreenView
from dflash_mlx.engine.events import Configuration, Event, Stats

STATS = Stats(Configuration("m", None, "float32", None, "cpu", "none", True, False, 1, "none"), 0)


def events(text: str, step: int) -> list[Event]:
    """`text` in pieces, each with one token a character."""
    thinking, tag, answer = text.rpartition("</think>")
    said = [(piece, "") for piece in pieces(thinking, step)] if tag else []
    said += [("", piece) for piece in pieces(answer, step)]
    return [
        Event(text, thought, [0] * len(text + thought), None, None, STATS) for thought, text in said
    ]


def pieces(text: str, step: int) -> list[str]:
    """`text` cut every `step` characters."""
    return [text[i : i + step] for i in range(0, len(text), step)]


def main(path: str, step: str, *flags: str) -> None:
    """Play the file."""
    console = Console()
    view = ScreenView(console, Canvas(console), show_thinking="--show-thinking" in flags)
    with no_echo(whole_lines=True), view.reply():
        said = events(Path(path).read_text(encoding="utf-8"), int(step))
        for number, event in enumerate(said):
            view.show(event)
            if "--wait" in flags:
                console.set_window_title(str(number))
                sys.stdin.readline()
    view.aside("the end")


if __name__ == "__main__":
    main(*sys.argv[1:])
