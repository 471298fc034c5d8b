"""One reply, from a pair that says what it is told: shown, stopped, and remembered."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dflash_mlx.chat.reader import PipeReader, PlainReader, Reader
from dflash_mlx.chat.repetition import TIMES
from dflash_mlx.chat.reply import Reply, show_reply
from dflash_mlx.chat.view import PlainView
from dflash_mlx.engine.events import Event

from .glass import Glass
from .play import events

Progress = Callable[[int, int], None]


def reply_of(
    said: Iterator[Event],
    reader: Reader | None = None,
    view: PlainView | None = None,
    loop_stop: bool = True,
    prompt: Callable[[Progress], None] = lambda progress: None,
) -> Reply:
    """A reply that first reads its prompt and then says `said`."""

    def speak(progress: Progress) -> Any:
        prompt(progress)
        yield from said

    return show_reply(speak, view or PlainView(), reader or PlainReader(), loop_stop)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted_after(count: int, text: str = "abcdefgh") -> Iterator[Event]:
    """`text`, a letter an event; Ctrl-C comes while the next one is in the making."""
    for number, event in enumerate(events(text, 1)):
        if number == count:
            press_ctrl_c()
        yield event


# Ctrl-C


def test_ctrl_c_ends_the_reply_after_the_round_that_runs() -> None:
    reply = reply_of(interrupted_after(3))
    assert (reply.answer, reply.finish_reason) == ("abcd", None)


def test_ctrl_c_during_the_prompt_ends_it_after_the_chunk_that_runs() -> None:
    done: list[int] = []

    def read(progress: Progress) -> None:
        for chunk in range(4):
            if chunk == 1:
                press_ctrl_c()
            done.append(chunk)
            progress(chunk, 4)

    reply = reply_of(iter(events("never", 1)), prompt=read)
    assert (done, reply.stats, reply.answer) == ([0, 1], None, "")


def test_a_second_ctrl_c_breaks_into_a_round_that_takes_long() -> None:
    def stuck() -> Iterator[Event]:
        yield events("a", 1)[0]
        press_ctrl_c()
        press_ctrl_c()
        yield events("never", 5)[0]

    assert reply_of(stuck()).answer == "a"


def test_ctrl_c_in_a_pipe_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        reply_of(interrupted_after(3), reader=PipeReader())


def test_afterwards_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    reply_of(interrupted_after(2))
    assert signal.getsignal(signal.SIGINT) is before


def test_the_generation_is_closed_however_the_reply_ends() -> None:
    closed: list[bool] = []

    def said() -> Iterator[Event]:
        try:
            yield from interrupted_after(1)
        finally:
            closed.append(True)

    kept: Any = said()
    show_reply(lambda progress: kept, PlainView(), PlainReader(), loop_stop=True)
    assert closed == [True]


# A reply that repeats itself


def test_a_span_said_too_often_stops_the_reply() -> None:
    span = "The same sentence once more, again. "
    reply = reply_of(iter(events("Well. " + span * 50, 4)))
    assert reply.repeated is not None
    assert reply.answer.count("once more") in (TIMES, TIMES + 1)


def test_a_thought_that_repeats_itself_stops_the_reply_too() -> None:
    assert reply_of(iter(events("Wait, let me think again. " * 50 + "</think>", 4))).repeated


def test_a_reply_that_ended_by_itself_was_not_stopped() -> None:
    whole = events("Again and again and again. " * 20, 10_000)[0]
    reply = reply_of(iter([replace(whole, finish_reason="stop")]))
    assert (reply.repeated, reply.finish_reason) == (None, "stop")


def test_it_goes_on_if_it_may() -> None:
    text = "The same sentence once more, again. " * 20
    reply = reply_of(iter(events(text, 4)), loop_stop=False)
    assert (reply.answer, reply.repeated) == (text, None)


# The plain view


def test_only_the_answer_reaches_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    reply = reply_of(iter(events("a thought</think>The answer.", 3)))
    assert capsys.readouterr() == ("The answer.\n", "thinking ... 9 tokens\n")
    assert (reply.thinking, reply.answer) == ("a thought", "The answer.")


def test_thinking_may_be_shown_in_the_plain_view(capsys: pytest.CaptureFixture[str]) -> None:
    reply_of(iter(events("a thought</think>The answer.", 3)), view=PlainView(show_thinking=True))
    assert capsys.readouterr() == ("The answer.\n", "thinking ...\na thought\n\n")


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    reply_of(iter(events("**a** \x1b[31mb\n\nc", 3)))
    assert capsys.readouterr().out == "**a** \x1b[31mb\n\nc\n"


def test_a_terminal_is_not_driven_by_the_text_and_nothing_is_redrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    glass = Glass()
    monkeypatch.setattr(sys, "stdout", glass)
    reply_of(iter(events("**a** \x1b[31mb", 1)))
    assert glass.getvalue() == "**a** ␛[31mb\n"


def test_a_question_that_cannot_be_asked_prints_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(progress: Progress) -> None:
        raise ValueError("too long")

    with pytest.raises(ValueError, match="too long"):
        reply_of(iter([]), prompt=refuse)
    assert capsys.readouterr() == ("", "")
