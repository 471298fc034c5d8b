"""What a person may decide of each stage: one field a setting, with its word of help.

The command line makes its flags of these dataclasses, and a YAML file has the same names in one
section a stage. Flags win over the file, the file over what an earlier run of the stage noted.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import UsageError

Settings = TypeVar("Settings", bound="Stage")


@dataclass(frozen=True)
class About:
    """A setting's word of help, the least and the highest value that make sense, another flag."""

    text: str
    least: float | None = None
    most: float | None = None
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Settings that check themselves: types, choices and bounds. Raises UsageError."""

    def __post_init__(self) -> None:
        for name, (kind, about) in self.known().items():
            value = _checked(name, getattr(self, name), kind)
            object.__setattr__(self, name, value)
            for number in value if isinstance(value, list) else [value]:
                if about.least is not None and number is not None and number < about.least:
                    raise UsageError(f"{name} must be {about.least:g} or more; it is {number:g}.")
                if about.most is not None and number is not None and number > about.most:
                    raise UsageError(f"{name} must be {about.most:g} or less; it is {number:g}.")

    @classmethod
    def known(cls) -> dict[str, tuple[Any, About]]:
        """All settings by name: the type, and what is said about them."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: get_args(hint) for name, hint in hints.items()}


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(Stage):
    """`train prepare`: which conversations to have, and how long."""

    prompts: Annotated[
        list[Path] | None, About("JSONL files of prompts: messages or text a line.")
    ] = None
    own: Annotated[int | None, About("Conversations that the target begins itself.", 0)] = None
    topics: Annotated[
        int | None, About("Conversations begun by built-in questions on topics.", 0)
    ] = None
    turns: Annotated[int, About("Turns of a conversation, at most.", 1)] = 3
    length: Annotated[int, About("Tokens of a conversation, at most.", 32)] = 512
    long_share: Annotated[float, About("Share of conversations that may be longer.", 0, 1)] = 0.1
    long_length: Annotated[int, About("Tokens of the longer ones, at most.", 32)] = 2048
    sampled: Annotated[
        float, About("Share of conversations answered at the temperature.", 0, 1)
    ] = 0.33
    temperature: Annotated[
        float | None,
        About("Of sampled answers; the rest are greedy. (default: the model's own, or 0.7)", 0),
    ] = None
    system: Annotated[str | None, About("Instructions ahead of every conversation.")] = None
    thinking: Annotated[bool | None, About("Switch the model's reasoning on or off.")] = None
    heldout: Annotated[float, About("Share of conversations kept for evaluation.", 0, 1)] = 0.03
    slots: Annotated[int, About("Conversations generated at once.", 1)] = 64
    seed: Annotated[int, About("Fixes the order of prompts and the sampling.", 0)] = 0


@dataclass(frozen=True, kw_only=True)
class RunSettings(Stage):
    """`train run`: the drafter's shape, the data, the loss and the optimizer."""

    data: Annotated[
        list[Path] | None, About("Folder of `prepare`, or JSONL files of conversations.")
    ] = None
    init: Annotated[
        str,
        About("Begin from: random, target (its last layers), or a drafter.", alias="--init-from"),
    ] = "random"
    layers: Annotated[int | None, About("Layers of the drafter. (default: 2)", 1)] = None
    dflash2: Annotated[bool, About("Train a DFlash 2: convolutions, and a selector.")] = False
    selector_rank: Annotated[
        int | None, About("Of DFlash 2: width of the selector's codebooks. (default: 64)", 1)
    ] = None
    taps: Annotated[
        list[int] | None, About("Target layers to look at. (default: five, evenly)")
    ] = None
    block_size: Annotated[
        int | None, About("Rows of a block: the anchor, and one a draft. (default: 8)", 2)
    ] = None
    heads: Annotated[int | None, About("Attention heads. (default: the target's)", 1)] = None
    kv_heads: Annotated[int | None, About("Key and value heads. (default: the target's)", 1)] = None
    head_dim: Annotated[int | None, About("Width of a head. (default: the target's)", 2)] = None
    intermediate_size: Annotated[
        int | None, About("Width of the MLP. (default: the target's)", 1)
    ] = None
    mask_token: Annotated[
        int | None, About("Token id of the mask. (default: an unused one)", 0)
    ] = None
    loss: Annotated[Literal["dpace", "decay"], About("How rows of a block are weighted.")] = "dpace"
    gamma: Annotated[
        float | None, About("Of decay: rows until a weight has fallen to 1/e.", 0.1)
    ] = None
    alpha: Annotated[float, About("Of D-PACE: the least chance that a row is right.", 0, 1)] = 0.5
    learning_rate: Annotated[float, About("At its peak.", 0)] = 6e-4
    warmup: Annotated[
        float, About("Share of the steps in which the learning rate rises.", 0, 1)
    ] = 0.04
    weight_decay: Annotated[float, About("Of AdamW.", 0)] = 0.0
    clip: Annotated[float, About("Largest norm of a gradient.", 0)] = 1.0
    batch_tokens: Annotated[int, About("Tokens of a batch, padding included.", 64)] = 4096
    accumulate: Annotated[int, About("Batches of a step.", 1)] = 1
    anchors: Annotated[int, About("Blocks drawn from a conversation each time it is seen.", 1)] = 64
    max_length: Annotated[int, About("Conversations are cut to so many tokens.", 16)] = 2048
    keep_loops: Annotated[bool, About("Train on answers that go round in circles, too.")] = False
    epochs: Annotated[float, About("How often each conversation is seen.", 0.01)] = 3.0
    steps: Annotated[int | None, About("Steps, instead of epochs.", 1)] = None
    frequent_tokens: Annotated[
        int, About("Head over so many frequent tokens at first; 0: all.", 0)
    ] = 0
    frequent_share: Annotated[
        float, About("Share of the steps that use the smaller head.", 0, 1)
    ] = 0.8
    features: Annotated[
        Literal["online", "cached"],
        About("Compute the target's features each time, or once (float16, on disk)."),
    ] = "online"
    head_rows: Annotated[int, About("Rows whose logits are in memory at a time.", 16)] = 1024
    heldout: Annotated[float, About("Share held out, where the data says nothing of it.", 0, 1)] = (
        0.03
    )
    eval_every: Annotated[int, About("Steps between evaluations; 0: none.", 0)] = 200
    eval_conversations: Annotated[int, About("Conversations of each side to evaluate on.", 1)] = 16
    save_every: Annotated[int, About("Steps between checkpoints.", 1)] = 200
    seed: Annotated[int, About("Fixes the first weights, the data's order and the anchors.", 0)] = 0


@dataclass(frozen=True, kw_only=True)
class EvalSettings(Stage):
    """`train eval`: which drafter, on what."""

    draft_model: Annotated[Path | None, About("The drafter. (default: the run's best)")] = None
    data: Annotated[
        list[Path] | None, About("Conversations to walk. (default: the held-out ones)")
    ] = None
    prompts: Annotated[
        list[Path] | None,
        About(
            "Files of prompts whose first turns to serve instead, or kinds of `bench`'s own: chat,"
            " code, maths, non-english, json."
        ),
    ] = None
    conversations: Annotated[int, About("How many, at most; of --prompts, in each set.", 1)] = 100
    serve: Annotated[int, About("How many of those walked to serve through the engine.", 0)] = 20
    max_tokens: Annotated[int, About("Tokens of a served answer, at most.", 2)] = 128
    temperature: Annotated[
        list[float] | None,
        About("Of served answers, each set at each of several; 0 is greedy. (default: 0)", 0),
    ] = None
    block_size: Annotated[int | None, About("Rows of a block. (default: the drafter's own)", 2)] = (
        None
    )
    plain: Annotated[bool, About("Time plain decoding of the same prompts, in turns.")] = False
    seed: Annotated[int, About("Fixes sampling.", 0)] = 0


@dataclass(frozen=True, kw_only=True)
class ExportSettings(Stage):
    """`train export`: which drafter, to where."""

    draft_model: Annotated[Path | None, About("The drafter. (default: the run's best)")] = None
    output: Annotated[Path | None, About("The new folder. (default: export, in the folder)")] = None
    name: Annotated[str | None, About("What the model card calls it.")] = None
    bits: Annotated[Literal[4, 8] | None, About("Quantize the MLX folder.")] = None
    draft_tokens: Annotated[
        int | None, About("Draft from so many frequent tokens in the MLX folder.", 1)
    ] = None


STAGES: dict[str, type[Stage]] = {
    "prepare": PrepareSettings,
    "run": RunSettings,
    "eval": EvalSettings,
    "export": ExportSettings,
}


def gather(stage: type[Settings], *layers: Mapping[str, Any]) -> Settings:
    """A stage's settings from `layers`, the later ones winning. Raises UsageError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in stage.known():
                raise UsageError(
                    f"{name} is no setting of this stage{_near(name, list(stage.known()))}."
                )
            merged[name] = value
    return stage(**merged)


def read_recipe(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a YAML file, one a stage. Raises UsageError for what it does not know."""
    import yaml  # `--help` reads this module, and does without

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is not YAML: {reason}.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} must have one section a stage: {', '.join(STAGES)}.")
    for name, section in content.items():
        if name not in STAGES:
            raise UsageError(f"{path}: there is no stage {name}{_near(str(name), list(STAGES))}.")
        if not isinstance(section, dict):
            raise UsageError(f"{path}: the section {name} must be settings with values.")
        for key in section:
            known = list(STAGES[name].known())
            if key not in known:
                raise UsageError(f"{path}: {name} has no setting {key}{_near(str(key), known)}.")
        gather(STAGES[name], section)  # a wrong value is told before the stages ahead have run
    return content


def to_json(settings: Stage) -> dict[str, Any]:
    """Settings as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return values


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _checked(name: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` has it, or a UsageError in words."""
    options = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    if value is None and type(None) in options:
        return None
    [wanted] = [option for option in options if option is not type(None)]
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            choices = ", ".join(map(str, get_args(wanted)))
            raise UsageError(f"{name} must be one of {choices}; it is {value}.")
        return value
    if get_origin(wanted) is list:
        [inner] = get_args(wanted)
        items = value if isinstance(value, list | tuple) else [value]
        return [_checked(name, item, inner) for item in items] or None
    return _converted(name, value, wanted)


def _converted(name: str, value: Any, wanted: Any) -> Any:
    fits = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, int | float) and not isinstance(value, bool) and _finite(value),
        str: isinstance(value, str),
        Path: isinstance(value, str | Path),
    }
    if not fits[wanted]:
        words = {bool: "true or false", int: "a whole number", float: "a finite number"}
        raise UsageError(f"{name} must be {words.get(wanted, 'a text')}; it is {value!r}.")
    return wanted(value)


def _finite(value: float) -> bool:
    """Whether a float can hold it: YAML's whole numbers have no end."""
    return abs(value) <= sys.float_info.max
