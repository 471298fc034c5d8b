"""What a person may ask of `dflash-mlx doctor`: one field a flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from .arguments import CacheDir


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """`dflash-mlx doctor`."""

    model: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The pair to try: a folder or a hub name. (default: the embedded one, if set up)",
        ),
    ] = None
    draft_model: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Its drafter. (default: auto, the one known to fit)",
            show_default=False,
        ),
    ] = "auto"
    cache_dir: CacheDir = None
    json: Annotated[
        bool, Option("--json", help="Print one JSON object. (default: a line a finding)")
    ] = False
