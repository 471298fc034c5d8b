"""The flags of `dflash-mlx convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from .arguments import CacheDir, Dtype

Mode = Literal["affine", "mxfp4", "nvfp4", "mxfp8"]


@dataclass(frozen=True, kw_only=True)
class WishArguments:
    """What becomes of the weights."""

    quantize: Annotated[
        bool,
        Option("--quantize", "-q", help="Quantize: 4 bits, groups of 64. (default: do not)"),
    ] = False
    q_bits: Annotated[
        int | None,
        Option(metavar="N", help="Bits of a weight: 2, 3, 4, 5, 6 or 8. (default: 4)"),
    ] = None
    q_group_size: Annotated[
        int | None,
        Option(metavar="N", help="Weights that share a scale: 32, 64 or 128. (default: 64)"),
    ] = None
    q_mode: Annotated[
        Mode | None,
        Option(help="How numbers are quantized, by MLX's names. (default: affine)"),
    ] = None
    recipe: Annotated[
        str | None,
        Option(
            "--recipe",
            "--quant-predicate",
            metavar="NAME",
            help="mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6. (default: all layers alike)",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        Option(
            metavar="GLOB",
            help="Leave layers alone, such as lm_head or '*.layers.0.*'; repeatable."
            " (default: none)",
        ),
    ] = None
    dtype: Annotated[
        Dtype | None,
        Option(help="Number format of what is not quantized. (default: the model's own)"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DrafterArguments:
    """For drafters only."""

    draft_vocab: Annotated[
        int | None,
        Option(metavar="N", help="Draft only the N most frequent tokens. (default: all)"),
    ] = None
    answers: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Conversations to count for --draft-vocab; repeatable. (default: none)",
        ),
    ] = None
    packaging: Annotated[
        Literal["mlx", "z-lab"],
        Option(
            help="z-lab leaves out what other readers of z-lab's drafters do not know."
            " (default: mlx)"
        ),
    ] = "mlx"
    target: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Measure the drafter's acceptance with this model. (default: do not)",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlaceArguments:
    """From where to where."""

    source: Annotated[
        str | None,
        Argument(metavar="SOURCE", help="A folder, a hub name, or a .gguf file."),
    ] = None
    hf_path: Annotated[
        str | None, Option(metavar="NAME", help="SOURCE, as mlx-lm calls it. (default: SOURCE)")
    ] = None
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            "--mlx-path",
            metavar="DIR",
            help="Where to write. (default: ./NAME-mlx-4bit, by the bits)",
        ),
    ] = None
    force: Annotated[bool, Option("--force", help="Replace what is there. (default: refuse)")] = (
        False
    )
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Only tell what would be done, from headers. (default: do it)"),
    ] = False
    upload_repo: Annotated[
        str | None,
        Option(metavar="NAME", help="Upload to this public repository. (default: do not)"),
    ] = None
    private: Annotated[
        bool, Option("--private", help="Make that repository private. (default: public)")
    ] = False
    cache_dir: CacheDir = None


@dataclass(frozen=True, kw_only=True)
class ConvertArguments(DrafterArguments, WishArguments, PlaceArguments):
    """`dflash-mlx convert`."""
