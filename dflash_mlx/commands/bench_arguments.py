"""What a person may ask of `dflash-mlx bench`: one field a flag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from ..errors import UsageError
from .arguments import CacheDir, ComputeDtype, DrafterName, ModelName

SamplingChoice = Literal["own", "greedy", "both"]


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """`dflash-mlx bench`."""

    model: ModelName = None
    draft_model: DrafterName = "auto"
    dtype: ComputeDtype = None
    cache_dir: CacheDir = None
    arms: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Ways to decode, with commas: plain, auto, copy, copy-only, block-N, mlx-lm."
            " (default: all but copy-only)",
        ),
    ] = None
    mlx_lm_draft: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Also mlx-lm with this small draft model, which shares the tokenizer.",
        ),
    ] = None
    peer: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=PYTHON",
            help="Also dflash, dflash-mlx, mlx-dspark or mlx-vlm, run by that Python.",
        ),
    ] = None
    base_url: Annotated[
        list[str] | None,
        Option(
            metavar="URL",
            help="Measure a server of OpenAI's protocol instead; several are compared.",
        ),
    ] = None
    strata: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Kinds of prompts: chat, code, maths, long-context, non-english, json."
            " (default: all)",
        ),
    ] = None
    sampling: Annotated[
        SamplingChoice,
        Option(
            help="The model's own sampling, greedy, or both. (default: both)", show_default=False
        ),
    ] = "both"
    limit: Annotated[
        int, Option(metavar="N", help="Prompts of a kind. (default: 8)", show_default=False)
    ] = 8
    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            "-m",
            metavar="N",
            help="End an answer after N tokens. (default: 128)",
            show_default=False,
        ),
    ] = 128
    runs: Annotated[
        int, Option(metavar="N", help="Times over. (default: 1)", show_default=False)
    ] = 1
    context: Annotated[
        int,
        Option(
            metavar="N",
            help="Tokens of a long-context prompt, about. (default: 2000)",
            show_default=False,
        ),
    ] = 2000
    seed: Annotated[
        int,
        Option(metavar="N", help="Fix all that chance decides. (default: 0)", show_default=False),
    ] = 0
    json: Annotated[bool, Option("--json", help="Print one JSON object. (default: tables)")] = False
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Also draw a PNG. It needs matplotlib.")
    ] = None

    def __post_init__(self) -> None:
        for name in ("limit", "max_tokens", "runs", "context"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} must be 1 or more; it is {getattr(self, name)}.")
        if self.seed < 0:
            raise UsageError(f"--seed must be 0 or more; it is {self.seed}.")
        if self.base_url and (self.peer or self.mlx_lm_draft or self.arms):
            raise UsageError(
                "--base-url measures servers alone: leave out --arms, --peer and --mlx-lm-draft."
            )
