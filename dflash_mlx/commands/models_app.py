"""`dflash-mlx models` on the command line: what each of its commands takes."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option, Typer

from .arguments import CacheDir

app = Typer(name="models", rich_markup_mode=None)

Name = Annotated[str, Argument(metavar="NAME", help="A name that `dflash-mlx models` shows.")]


@app.callback(invoke_without_command=True)
def models(context: Context) -> None:
    """List, fetch and remove models."""
    if context.invoked_subcommand is None:
        show()


@app.command("list")
def show(cache_dir: CacheDir = None) -> None:
    """List what is here, and the known pairs.

    Each target is shown with its drafter, their sizes, when they were last used, and where they
    are; each known pair with the context that this machine's memory leaves room for.
    """
    from .models import show

    show(cache_dir)


@app.command()
def pull(name: Name, cache_dir: CacheDir = None) -> None:
    """Fetch a model and its drafter.

    NAME is a known pair, or a model of the hub as org/name in any quantization. An interrupted
    download goes on when the command is run again.
    """
    from .models import pull

    pull(name, cache_dir)


@app.command()
def rm(
    name: Name,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Remove without asking. (default: ask)")
    ] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Remove one model, after asking.

    Only what `dflash-mlx models` lists can be removed, one name at a time; the bytes that this
    freed are told.
    """
    from .models import rm

    rm(name, yes, cache_dir)


@app.command()
def info(name: Name, cache_dir: CacheDir = None) -> None:
    """Show what is known of a model.

    That is its drafter, where both are, the memory they take, and the context that this leaves.
    """
    from .models import info

    info(name, cache_dir)
