"""The command line: one short function a command, and what a person reads when one fails.

Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted. A command's module, and with it MLX, is
imported when the command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from ._version import __version__
from .backend import prepare
from .chat.settings import config_file, read_defaults
from .commands.arguments import ChatArguments, GenerateArguments
from .commands.bench_arguments import BenchArguments
from .commands.convert_arguments import ConvertArguments
from .commands.doctor_arguments import DoctorArguments
from .commands.models_app import app as models_app
from .commands.train.app import app as train_app
from .errors import DFlashError, sentence

INTERRUPTED = 130

Arguments = TypeVar("Arguments")

# Typer's boxes need rich, which alone would double the time of `--help`.
app = typer.Typer(
    name="dflash-mlx",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
)


def takes(
    arguments: type[Arguments],
) -> Callable[[Callable[[Arguments], None]], Callable[..., None]]:
    """Give a command the flags that the fields of a dataclass declare, and hand it an instance."""

    def decorate(command: Callable[[Arguments], None]) -> Callable[..., None]:
        def call(**values: object) -> None:
            command(arguments(**values))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = inspect.signature(arguments, eval_str=True)  # type: ignore[attr-defined]
        return call

    return decorate


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Chat with language models on MLX, faster and losslessly, through DFlash drafters."""
    if version:
        print(f"dflash-mlx {__version__}")
        raise typer.Exit
    if context.invoked_subcommand == "chat":  # flags win over these
        context.default_map = {"chat": read_defaults(config_file(), ChatArguments)}
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
@takes(ChatArguments)
def chat(arguments: ChatArguments) -> None:
    """Talk with a model.

    Ctrl-C stops a reply and keeps its part, Ctrl-D leaves, and /help lists what else there is.
    """
    prepare(exact=arguments.exact)
    from .commands.chat import run

    run(arguments)


@app.command()
@takes(GenerateArguments)
def generate(arguments: GenerateArguments) -> None:
    """Answer one prompt.

    The answer goes to standard output, and all else to standard error. For example:

    dflash-mlx generate --prompt "What is gravity?"
    """
    prepare(exact=arguments.exact)
    from .commands.generate import run

    run(arguments)


@app.command()
@takes(ConvertArguments)
def convert(arguments: ConvertArguments) -> None:
    """Make an MLX folder of a model or a drafter.

    The result is loaded and tried before it takes its place. For example:

    dflash-mlx convert Qwen/Qwen3-4B -q
    """
    backend = prepare()
    from .commands.convert import run

    run(arguments, backend)


@app.command()
@takes(BenchArguments)
def bench(arguments: BenchArguments) -> None:
    """Measure what drafting gives here.

    Every way to decode answers the same prompts, in turns. For example:

    dflash-mlx bench --strata chat,code --limit 5
    """
    backend = prepare()
    from .commands.bench import run

    run(arguments, backend)


@app.command()
@takes(DoctorArguments)
def doctor(arguments: DoctorArguments) -> None:
    """Look for what is wrong on this machine.

    Each finding comes with what to do about it; the exit code is 1 if something needs mending.
    """
    from .commands.doctor import run

    raise typer.Exit(run(arguments))


app.add_typer(models_app)
app.add_typer(train_app)


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code; each error that is foreseen becomes one line."""
    if sys.stdout is None:
        return _fail("Standard output is closed, so that no answer could be shown.", 1)
    if sys.stdin is None:  # closed: there is nothing to read
        sys.stdin = io.StringIO()
    try:
        code = app(arguments, prog_name="dflash-mlx", standalone_mode=False)
        print(end="", flush=True)  # a full disk shows here, and not while Python shuts down
        return code or 0
    except DFlashError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else app.info.name
        message = error.format_message()
        stop = "" if message.endswith((".", "?")) else "."
        return _fail(f"{message}{stop} See `{command} --help`.", error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        _abandon_output()
        return 1
    except UnicodeDecodeError:
        return _fail("The input is not valid UTF-8: convert it first (iconv does).", 2)
    except OSError as error:
        _abandon_output()
        return _fail(sentence(error), 1)


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _abandon_output() -> None:
    """Where standard output takes no more, drop the rest: Python would complain of it at exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
