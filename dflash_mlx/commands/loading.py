"""Load a pair for a command, and tell a person at the terminal what takes its time."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..api import load
from .arguments import PairArguments

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ..benchmark.runner import Tell
    from ..engine.context import Progress
    from ..engine.options import Options
    from ..hub.embedded import SetupProgress
    from ..pair import Pair

_SHORT = 16
"""Tokens of context behind which rounds are measured before there is any conversation."""


def load_for(arguments: PairArguments) -> Pair:
    """The pair that the arguments name. Notes and progress go to standard error."""
    silence_libraries()
    with setup_progress() as tell:
        pair = load(
            arguments.model,
            None if arguments.no_draft else arguments.draft_model,
            dtype=arguments.dtype,
            exact=arguments.exact,
            kv_bits=int(arguments.kv_bits) if arguments.kv_bits else None,
            context=arguments.context,
            cache_dir=arguments.cache_dir,
            kernels=arguments.kernels,
            progress=tell,
        )
    for note in pair.configuration.notes:
        print(f"note: {note}", file=sys.stderr)
    return pair


def tune(pair: Pair, options: Options) -> None:
    """Measure what rounds cost on this machine, if blocks are chosen by that and it is not known.

    A longer context is measured when there is one.
    """
    from ..engine.sampling import Chooser

    chooser = Chooser(options.sampling)
    drafts, copies = pair.block_size(options) > 1, pair.copies(options)
    automatic = options.block_size == "auto" and (drafts or copies)
    if not automatic or pair.tuning.costs(chooser, drafts).covers(_SHORT):
        return
    print("measuring rounds on this machine, once (--block-size ROWS skips it)", file=sys.stderr)
    context = pair.context()
    context.prefill([0] * _SHORT, drafts)
    pair.tuning.measure(context, chooser, drafts=drafts)


@contextmanager
def setup_progress() -> Iterator[SetupProgress]:
    """What to give as `progress` of a set-up: a bar a stage; a line where there is no terminal."""
    with _bar() as bar:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
                if not bar.console.is_terminal:
                    print(f"{stage} ...", file=sys.stderr)
            bar.update(tasks[stage], completed=done, total=total)

        yield tell


@contextmanager
def prefill_progress() -> Iterator[Progress]:
    """What to give as `progress`: a bar on standard error for a prompt of several chunks."""
    with _bar(transient=True) as bar:
        tasks: list[TaskID] = []

        def tell(done: int, total: int) -> None:
            if not tasks and done < total:
                tasks.append(bar.add_task("reading the prompt", total=total))
            if tasks:
                bar.update(tasks[0], completed=done, visible=done < total)

        yield tell


@contextmanager
def bench_progress() -> Iterator[Tell]:
    """What to give as `tell` of a benchmark: a bar; a line a stratum where there is no terminal."""
    with _bar(transient=True) as bar:
        task = bar.add_task("warming up", total=None)
        said = set[str]()

        def tell(done: int, total: int, stratum: str) -> None:
            bar.update(task, completed=done, total=total, description=stratum)
            if stratum and stratum not in said and not bar.console.is_terminal:
                print(f"{done} of {total} answers, now {stratum} ...", file=sys.stderr)
            said.add(stratum)

        yield tell


def silence_libraries() -> None:
    """Keep banners and advice of other libraries out of what a person reads."""
    warnings.filterwarnings("ignore")
    for name in ("transformers", "huggingface_hub", "mlx_lm"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def _bar(transient: bool = False) -> Iterator[Bar]:
    """A Rich progress bar on standard error, which shows nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=transient, disable=not console.is_terminal
    ) as bar:
        yield bar
