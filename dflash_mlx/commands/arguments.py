"""What a person may ask of each command: one field a flag, declared once for all commands.

The command line reads its options off these dataclasses (`cli.py`), and a command's `run` takes
one. A sampling field that is None was left out and takes the pair's own default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from ..engine.options import Options, Sampling

Dtype = Literal["float32", "bfloat16", "float16"]
KvBits = Literal["4", "8"]
ModelName = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The model: a folder or a hub name. (default: smollm2-135m, the embedded one)",
    ),
]
DrafterName = Annotated[
    str,
    Option(
        metavar="NAME",
        help="The drafter: a folder or a hub name. (default: auto, the one known to fit)",
        show_default=False,
    ),
]
ComputeDtype = Annotated[
    Dtype | None,
    Option(help="Number format to compute in. (default: what suits the machine)"),
]
CacheDir = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Where conversions and the embedded model are kept. (default: ~/.cache/dflash-mlx)",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class PromptArguments:
    """The one prompt of `generate`."""

    prompt: Annotated[
        str,
        Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="What to answer; a dash reads standard input.",
        ),
    ]
    ignore_chat_template: Annotated[
        bool,
        Option(
            "--ignore-chat-template",
            help="Continue the prompt as raw text. (default: answer it)",
        ),
    ] = False
    json: Annotated[
        bool,
        Option(
            "--json",
            help="Print one JSON object at the end. (default: the text as it comes)",
        ),
    ] = False


def _rows(text: str | int) -> int | None:
    """A number of rows; None stands for auto."""
    return None if text == "auto" else int(text)


@dataclass(frozen=True, kw_only=True)
class PairArguments:
    """Which models, and how they run."""

    model: ModelName = None
    draft_model: DrafterName = "auto"
    no_draft: Annotated[
        bool,
        Option(
            "--no-draft",
            help="Decode without the drafter, to the same tokens. (default: draft)",
        ),
    ] = False
    block_size: Annotated[
        int | None,
        Option(
            metavar="ROWS",
            help="Rows verified a round; 8 rows are 7 drafts. (default: auto, what is fastest)",
            parser=_rows,
        ),
    ] = None
    copy: Annotated[
        bool | None,
        Option(
            "--copy/--no-copy",
            help="Let auto draft what the context holds already. (default: beside a drafter)",
            show_default=False,
        ),
    ] = None
    dtype: ComputeDtype = None
    exact: Annotated[
        bool,
        Option(
            "--exact",
            help="Refuse any path that is not bit-equal for every block size. (default: off)",
        ),
    ] = False
    kernels: Annotated[
        bool,
        Option(
            "--kernels/--no-kernels",
            help="Ours where they are faster: on a Mac, raced at the first load; on a CPU with"
            " OpenBLAS, fused layers. (default: on)",
            show_default=False,
        ),
    ] = True
    kv_bits: Annotated[
        KvBits | None,
        Option(help="Keep the context's keys and values in so many bits. (default: as computed)"),
    ] = None
    context: Annotated[
        int | None,
        Option(
            metavar="TOKENS",
            help="The longest conversation to make room for. (default: the model's own)",
        ),
    ] = None
    cache_dir: CacheDir = None


@dataclass(frozen=True, kw_only=True)
class AnswerArguments:
    """What frames an answer, and where it ends."""

    system: Annotated[
        str | None,
        Option(
            "--system",
            "--system-prompt",
            metavar="TEXT",
            help="Instructions ahead of the conversation. (default: the model's own)",
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            "--max-tokens",
            "-m",
            metavar="N",
            help="End an answer after N tokens. (default: where the context ends)",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        Option(
            metavar="TEXT",
            help="End an answer before TEXT; may be given more than once. (default: none)",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SamplingArguments:
    """How tokens are chosen."""

    temperature: Annotated[
        float | None,
        Option(
            "--temperature",
            "--temp",
            metavar="X",
            help="How freely to choose; 0 takes the likeliest token. (default: the model's own)",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Keep the likeliest tokens that sum to X; 1 is off. (default: the model's own)",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Keep the N likeliest tokens; 0 is off. (default: the model's own)",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Keep tokens X times as likely as the best; 0 is off. (default: the model's own)",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Make recent tokens less likely; 1 is off. (default: the model's own)",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Subtract X from recent tokens; 0 is off. (default: the model's own)",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Subtract X for each recent use; 0 is off. (default: the model's own)",
        ),
    ] = None
    seed: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Fix all that chance decides. (default: drawn anew, and reported)",
        ),
    ] = None

    def sampling(self, defaults: Sampling) -> Sampling:
        """The pair's `defaults` under what was asked for. Raises UsageError out of range."""
        known = {field.name for field in fields(Sampling)}
        asked = {name: value for name, value in vars(self).items() if value is not None}
        return replace(defaults, **{name: asked[name] for name in known & asked.keys()})


# Fields, and so `--help`, come in the order of the bases from last to first.
@dataclass(frozen=True, kw_only=True)
class ConversationArguments(SamplingArguments, AnswerArguments, PairArguments):
    """What `generate` and `chat` share."""

    def __post_init__(self) -> None:
        self.options(Sampling())  # a flag out of range is said before a model is loaded

    def options(self, defaults: Sampling) -> Options:
        """The engine's options over the pair's sampling `defaults`. Raises UsageError."""
        return Options(
            sampling=self.sampling(defaults),
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            seed=self.seed,
            block_size="auto" if self.block_size is None else self.block_size,
            copy=self.copy,
            draft=not self.no_draft,
        )


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(ConversationArguments, PromptArguments):
    """`dflash-mlx generate`."""


@dataclass(frozen=True, kw_only=True)
class ScreenArguments:
    """How a chat looks, and what it keeps."""

    thinking: Annotated[
        bool | None,
        Option(
            "--thinking/--no-thinking",
            help="Let the model reason first. (default: as its drafter was trained)",
            show_default=False,
        ),
    ] = None
    show_thinking: Annotated[
        bool,
        Option("--show-thinking", help="Show the reasoning as it comes. (default: count it)"),
    ] = False
    plain: Annotated[
        bool,
        Option(
            "--plain",
            help="Only add text, for screen readers and logs. (default: render Markdown)",
        ),
    ] = False
    no_history: Annotated[
        bool,
        Option("--no-history", help="Keep no messages to recall next time. (default: keep them)"),
    ] = False
    no_loop_stop: Annotated[
        bool,
        Option(
            "--no-loop-stop",
            help="Let a reply repeat itself. (default: stop a span said 8 times)",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ChatArguments(ConversationArguments, ScreenArguments):
    """`dflash-mlx chat`."""
