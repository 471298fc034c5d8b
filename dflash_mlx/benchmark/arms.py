"""The ways to decode that run in this process: the engine's own, and mlx-lm's."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api import gather
from ..engine.generation import stream
from ..engine.options import Options, Sampling
from ..errors import DFlashError, UsageError
from ..pair import Pair
from ..target.model import Target
from .sample import Asked, Sample

PLAIN = "plain"
MLX_LM = "mlx-lm"
COPY_ONLY = "copy-only"
MLX_LM_DRAFTS = 4
"""Tokens that mlx-lm's draft model proposes a round, within the usual 2 to 5."""


class Arm(Protocol):
    """One way to decode.

    `same_rule` says that it promises the tokens of plain decoding at any temperature; other arms
    draw their own, so that only greedy answers compare. `samples` says that it can draw at all.
    """

    name: str
    same_rule: bool
    samples: bool

    def answer(self, asked: Asked) -> Sample:
        """Answer once, from nothing. Raises DFlashError where the arm cannot go on."""

    def close(self) -> None:
        """Let go of what the arm holds."""


@dataclass
class EngineArm:
    """This engine, under `changes` to its options."""

    name: str
    pair: Pair
    changes: dict[str, Any]
    same_rule: bool = True
    samples: bool = True

    def answer(self, asked: Asked) -> Sample:
        """Answer with fresh caches."""
        options = Options(
            sampling=asked.sampling or self.pair.defaults,
            max_tokens=asked.max_tokens,
            seed=asked.seed,
            **self.changes,
        )
        result = gather(list(stream(self.pair, self.pair.context(), asked.tokens, options)))
        stats = result.stats
        return Sample(
            result.thinking + result.text,
            stats.prompt_tokens,
            stats.generated_tokens,
            stats.prefill_seconds,
            stats.decode_seconds,
            list(result.tokens),
            list(stats.accepted),
            list(stats.drafted),
            stats.model_seconds,
        )

    def close(self) -> None:
        """Nothing: the pair belongs to the caller."""


@dataclass
class MlxLmArm:
    """mlx-lm's own `stream_generate` over the pair's target, its weights as mlx-lm loads them.

    With a `draft_model` it drafts `drafts` tokens a round by that small model.
    """

    name: str
    pair: Pair
    draft_model: nn.Module | None = None
    drafts: int = MLX_LM_DRAFTS
    same_rule: bool = False
    samples: bool = True

    def __post_init__(self) -> None:
        self._tokenizer = TokenizerWrapper(
            self.pair.tokenizer._tokenizer, eos_token_ids=self.pair.stop_tokens
        )
        self._model = as_loaded(self.pair.target)

    def answer(self, asked: Asked) -> Sample:
        """Answer, and note when the first token and the last came."""
        mx.random.seed(asked.seed)
        begin = time.perf_counter()
        tokens, from_draft, text, first = list[int](), list[bool](), "", begin
        for response in self._responses(asked):
            if not tokens:
                first = time.perf_counter()
            tokens.append(response.token)
            from_draft.append(response.from_draft)
            text += response.text
        end = time.perf_counter()
        accepted = accepted_runs(from_draft) if self.draft_model else []
        return Sample(
            text,
            len(asked.tokens),
            len(tokens),
            first - begin,
            end - first,
            tokens,
            accepted,
            [self.drafts] * len(accepted),
        )

    def close(self) -> None:
        """Let go of the draft model."""
        self.draft_model = None

    def _responses(self, asked: Asked) -> Iterator[Any]:
        sampling = asked.sampling or self.pair.defaults
        drafting: dict[str, Any] = {"num_draft_tokens": self.drafts} if self.draft_model else {}
        return stream_generate(
            self._model,
            self._tokenizer,
            asked.tokens,
            max_tokens=asked.max_tokens,
            draft_model=self.draft_model,
            sampler=make_sampler(
                sampling.temperature, sampling.top_p, sampling.min_p, top_k=sampling.top_k
            ),
            logits_processors=_processors(sampling),
            **drafting,
        )


def as_loaded(target: Target) -> nn.Module:
    """The target's model; a copy where fused layers have put its weights in another order.

    They would be copied into the old order at every step, and mlx-lm look slower than it is.
    """
    if not target.serving.fused:
        return target.model
    model = copy.deepcopy(target.model)
    model.update(tree_map(mx.contiguous, model.parameters()))
    mx.eval(model.parameters())
    return model


def accepted_runs(from_draft: Sequence[bool]) -> list[int]:
    """Drafts accepted in each round of mlx-lm, whose every round ends with the model's own token.

    The first token is a round's like any other there: prefill yields none by itself.
    """
    runs, run = list[int](), 0
    for drafted in from_draft:
        if drafted:
            run += 1
        else:
            runs.append(run)
            run = 0
    return [*runs, run] if run else runs


def engine_arms(pair: Pair, names: str | None) -> list[Arm]:
    """The arms in a list with commas, or all that this pair has; plain decoding is always first.

    "auto" chooses the rows of each round, "copy" also drafts what the context holds: the default of
    the other commands. "copy-only" has no other drafts.
    Raises UsageError for a name that is none.
    """
    wanted = _all(pair) if names is None else [name.strip() for name in names.split(",")]
    alone = (PLAIN, COPY_ONLY, MLX_LM)
    if pair.drafter is None and not set(alone).issuperset(wanted):
        raise DFlashError(
            "There is no drafter to measure: name one as --draft-model, or ask for"
            f" --arms {','.join(alone)}."
        )
    return [_arm(pair, name) for name in dict.fromkeys([PLAIN, *wanted])]


def _all(pair: Pair) -> list[str]:
    if pair.drafter is None:
        return [PLAIN, MLX_LM]
    trained = pair.block_size(Options())
    blocks = [f"block-{rows}" for rows in (4, 8, 16) if rows < trained] + [f"block-{trained}"]
    return [PLAIN, "auto", "copy", *blocks, MLX_LM]


def _arm(pair: Pair, name: str) -> Arm:
    match name.partition("-"):
        case ("plain", "", ""):
            return EngineArm(name, pair, {"draft": False})
        case ("auto", "", ""):
            return EngineArm(name, pair, {"block_size": "auto", "copy": False})
        case ("copy", "", ""):
            return EngineArm(name, pair, {"block_size": "auto", "copy": True})
        case ("copy", "-", "only"):
            pair.copies(Options(draft=False, block_size="auto", copy=True))  # refused at once
            return EngineArm(name, pair, {"draft": False, "block_size": "auto", "copy": True})
        case ("block", "-", rows) if rows.isdecimal() and int(rows) > 1:
            pair.block_size(Options(block_size=int(rows)))  # too many rows are said at once
            return EngineArm(name, pair, {"block_size": int(rows)})
        case ("mlx", "-", "lm"):
            return MlxLmArm(name, pair)
    known = f"{PLAIN}, auto, copy, {COPY_ONLY}, block-N, {MLX_LM}"
    raise UsageError(f"There is no arm {name!r}: --arms takes {known}.")


def _processors(sampling: Sampling) -> list[Any]:
    """The penalties in mlx-lm's form: its None is our 1 or 0."""
    return make_logits_processors(
        dict(sampling.logit_bias) or None,
        sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
        sampling.repetition_context_size,
        sampling.presence_penalty or None,
        sampling.presence_context_size,
        sampling.frequency_penalty or None,
        sampling.frequency_context_size,
    )
