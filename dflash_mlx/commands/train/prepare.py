"""`train prepare`: the target writes conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...training.alone import alone
from ...training.checkpoint import checkpoints
from ...training.corpus import read_manifest
from ...training.prepare import Prepare, PrepareReport
from ...training.settings import PrepareSettings, gather
from .progress import Pace, say, stopping
from .stages import Stages


def prepare_data(stages: Stages, given: dict[str, Any]) -> None:
    """Have the conversations that are missing, and tell how it goes."""
    settings = gather(PrepareSettings, stages.section("prepare"), given)
    pair, identity = stages.target()
    stage = Prepare(pair, settings, stages.place.data, identity)
    for note in stage.notes:
        say(f"note: {note}")
    pace, tokens, told = Pace(), Pace(), False
    with alone(stages.place.root), stopping() as stop:
        for report in stage.run(stop):
            if not told:
                told = True
                for note in _notes(stages, report):
                    say(f"note: {note}")
            tokens.due(report.answer_tokens)
            if pace.due(report.done) or report.done == report.total:
                say(
                    f"{report.done:,} of {report.total:,} conversations ·"
                    f" {report.answer_tokens:,} tokens of answers,"
                    f" {tokens.rate(report.answer_tokens):,.0f} a second ·"
                    f" {report.looped:,} cut where they went round in circles"
                    f"{pace.left(report.done, report.total)}"
                )
        if stop():
            say("stopped; the same command goes on")
            raise KeyboardInterrupt
    manifest = read_manifest(stages.place.data)
    say(
        f"{stages.place.data}: {manifest['conversations']:,} conversations,"
        f" {manifest['answer_tokens']:,} tokens of answers,"
        f" {manifest['heldout_conversations']:,} conversations held out"
    )


def _notes(stages: Stages, report: PrepareReport) -> Iterator[str]:
    """What a person should know before all this takes its time."""
    if report.left_out:
        yield (
            f"{report.left_out:,} prompts leave no room for an answer and are left out: shorten"
            " them, or choose a longer --length and another --folder."
        )
    place = stages.place
    if report.done < report.total and checkpoints(place.run) and place.data in stages.data:
        yield (
            f"the run in {place.run} cannot go on with more conversations than it was begun with:"
            f" `train run` in another --folder, with --data {place.data} and --init"
            f" {stages.best()}."
        )
