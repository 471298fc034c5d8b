"""`dflash-mlx train` on the command line: its stages, and flags made of their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option, Typer

from ...backend import prepare
from ...errors import UsageError
from ...training.settings import STAGES, gather, read_recipe
from ..arguments import ComputeDtype, Dtype
from .flags import flags_of, parsed

app = Typer(name="train", rich_markup_mode=None)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all stages take: which target, and where the work is kept."""

    model: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The target, a folder or a hub name. (default: smollm2-135m, or the folder's own)",
        ),
    ] = None
    folder: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Where data, run and export are kept. (default: drafter-training)",
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(metavar="FILE", help="Settings as YAML, a section a stage; flags win over it."),
    ] = None
    dtype: ComputeDtype = None


def stage(name: str) -> Callable[[Callable[[Job, dict[str, Any]], None]], Callable[..., None]]:
    """Make a command of a stage: it takes the job's flags and one for each setting.

    The command gets the job, and those settings that were given.
    """

    def decorate(command: Callable[[Job, dict[str, Any]], None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            own = {one.name: values.pop(one.name) for one in fields(Job)}
            given = {key: value for key, value in values.items() if value is not None}
            job, flags = Job(**own), parsed(STAGES[name], given)
            recipe = read_recipe(job.config) if job.config else {}
            gather(STAGES[name], recipe.get(name, {}), flags)  # errors come before a model does
            command(job, flags)

        call.__name__, call.__doc__ = name, command.__doc__
        job = inspect.signature(Job, eval_str=True).parameters
        flags = [*job.values(), *flags_of(STAGES[name])]
        call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
        app.command(name)(call)
        return call

    return decorate


@app.callback(invoke_without_command=True)
def train(
    context: Context,
    model: Annotated[str | None, Option(metavar="NAME", help="As of the stages.")] = None,
    folder: Annotated[Path | None, Option(metavar="DIR", help="As of the stages.")] = None,
    config: Annotated[Path | None, Option(metavar="FILE", help="As of the stages.")] = None,
    dtype: Annotated[Dtype | None, Option(help="As of the stages.")] = None,
) -> None:
    """Train a drafter for your own model.

    Without a stage, all four run one after another, and what is done already is not done again:

    dflash-mlx train --model my-model --folder my-drafter
    """
    job = Job(model=model, folder=folder, config=config, dtype=dtype)
    given = job != Job()
    if context.invoked_subcommand is not None:
        if given:
            raise UsageError(f"Put flags behind the stage: train {context.invoked_subcommand} ...")
        return
    if not given:
        print(context.get_help())
        return
    backend = prepare()
    from .evaluate import evaluate
    from .export import export_once
    from .prepare import prepare_data
    from .run import run
    from .stages import Stages

    stages = Stages(job, backend)
    if not stages.has_data:
        prepare_data(stages, {})
    run(stages, {})
    evaluate(stages, {})
    export_once(stages)


@stage("prepare")
def prepare_stage(job: Job, given: dict[str, Any]) -> None:
    """Have the target write conversations to train on.

    Prompts come from files, from built-in questions, or the target speaks as the user too. An
    interrupted stage goes on where it stopped. For example:

    dflash-mlx train prepare --folder my-drafter --topics 500 --own 1000
    """
    backend = prepare()
    from .prepare import prepare_data
    from .stages import Stages

    prepare_data(Stages(job, backend), given)


@stage("run")
def run_stage(job: Job, given: dict[str, Any]) -> None:
    """Train the drafter, or go on with the run in the folder.

    Ctrl-C stops behind a step and saves; the same command goes on. For example:

    dflash-mlx train run --folder my-drafter --layers 1 --init target
    """
    backend = prepare()
    from .run import run
    from .stages import Stages

    run(Stages(job, backend), given)


@stage("eval")
def eval_stage(job: Job, given: dict[str, Any]) -> None:
    """Measure acceptance on held-out conversations, walked and served. For example:

    dflash-mlx train eval --folder my-drafter --prompts humaneval.jsonl --plain
    """
    backend = prepare()
    from .evaluate import evaluate
    from .stages import Stages

    evaluate(Stages(job, backend), given)


@stage("export")
def export_stage(job: Job, given: dict[str, Any]) -> None:
    """Write the best drafter as others take it, with a model card. For example:

    dflash-mlx train export --folder my-drafter --output my-drafter-dflash
    """
    backend = prepare()
    from .export import export
    from .stages import Stages

    export(Stages(job, backend), given)
