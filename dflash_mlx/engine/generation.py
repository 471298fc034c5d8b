"""One generation: reuse, prefill, rounds, text and statistics, as a stream of events."""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from ..errors import DFlashError, UsageError
from ..kernels.metal import summary
from .blocks import Blocks, FixedBlocks
from .context import Context, Progress
from .decode import Step, decode
from .events import FRUITLESS_NOTE, Configuration, Event, Stats
from .noise import stream_key
from .options import Options
from .output import Output
from .sampling import Chooser
from .text import TextStream
from .thinking import ThinkingSplitter, opened_by_prompt
from .tuning import Tuning

if TYPE_CHECKING:
    from ..pair import Pair
    from ..target.model import Target

_TAIL = 32
"""Prompt tokens to look at for an opening thinking tag: templates put it at the very end."""


def stream(
    pair: Pair,
    context: Context,
    prompt: Sequence[int],
    options: Options,
    *,
    turn: int = 0,
    retry: int = 0,
    continuing: bool = False,
    progress: Progress | None = None,
) -> Iterator[Event]:
    """Continue `prompt` (token ids, the whole conversation): one event a pass of the target.

    What `context` already stands for is not forwarded again. `continuing` says that the text goes
    on with the prompt's own, rather than beginning a reply. Raises DFlashError at once where the
    prompt does not fit the model's context, and UsageError where `options` do not fit the pair.
    """
    _check_tokens(pair, [*prompt, *options.sampling.logit_bias])
    limit = _token_limit(pair, len(prompt), options.max_tokens)
    block_size, copies = pair.block_size(options), pair.copies(options)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    chooser = Chooser(options.sampling, stream_key(seed, turn, retry), options.processors)
    opened = opened_by_prompt(pair.tokenizer.decode(prompt[-_TAIL:]), pair.thinking_tags[0])
    output = Output(
        TextStream(pair.token_bytes, continuing=continuing),
        pair.stop_tokens,
        options.stop,
        ThinkingSplitter(opened, *pair.thinking_tags),
    )
    drafts = block_size > 1
    tuning = pair.tuning if options.block_size == "auto" and (drafts or copies) else None
    blocks = tuning.blocks(chooser, copies, drafts) if tuning else FixedBlocks(block_size)
    configuration = replace(
        _configuration(pair, block_size, len(prompt)),
        auto=tuning is not None,
        copies=blocks.copies,
    )
    stats = Stats(configuration, seed, prompt_tokens=len(prompt))
    return _events(context, prompt, blocks, tuning, limit, chooser, output, stats, progress)


def _events(
    context: Context,
    prompt: Sequence[int],
    blocks: Blocks,
    tuning: Tuning | None,
    limit: int,
    chooser: Chooser,
    output: Output,
    stats: Stats,
    progress: Progress | None,
) -> Iterator[Event]:
    begin = time.perf_counter()
    mx.reset_peak_memory()
    ran_before = Counter(context.target.metal.ran) if context.target.metal else Counter()
    draft = blocks.drafts
    stats.reused_tokens = context.reuse(prompt, draft)
    context.prefill(prompt[stats.reused_tokens : -1], draft, progress)
    if tuning and limit > 1:
        begin += _measure(tuning, context, chooser, draft, stats)
    first = 0.0
    steps = decode(context, prompt[-1], blocks, limit, chooser, output.take)
    for step in _saying_dtype(steps, stats.configuration.draft_dtype):
        now = time.perf_counter()
        if stats.generated_tokens == 0:
            first, stats.prefill_seconds = now, now - begin
        else:
            stats.model_seconds += step.model_seconds
        stats.decode_seconds = now - first
        stats.configuration = _with_kernels(stats.configuration, context.target, ran_before)
        reason = _count(stats, step, output.stopped, limit)
        if stats.fruitless and FRUITLESS_NOTE not in stats.configuration.notes:
            stats.configuration = stats.configuration.noting(FRUITLESS_NOTE)
        if reason is not None:
            output.finish()
        text, thinking = output.drain()
        accepted = step.accepted if step.drafted else None
        yield Event(text, thinking, step.tokens, accepted, reason, stats)
        if tuning and reason is None:  # the context may have grown beyond what is known
            first += _measure(tuning, context, chooser, draft, stats)


def _measure(
    tuning: Tuning, context: Context, chooser: Chooser, draft: bool, stats: Stats
) -> float:
    """Learn what rounds cost at this length where it is not known; the seconds, and a note of it.

    They are part of no figure.
    """
    seconds = tuning.measure(context, chooser, drafts=draft)
    if seconds:
        note = f"measured what rounds cost here, once, in {seconds:.1f} s"
        stats.configuration = stats.configuration.noting(note)
    return seconds


def _configuration(pair: Pair, block_size: int, prompt_tokens: int) -> Configuration:
    """How this generation runs, with a note where its context is beyond the drafter's."""
    if pair.drafter is None or block_size == 1:
        return replace(
            pair.configuration, block_size=1, draft_model=None, draft_dtype=None, draft_vocab=None
        )
    trained = pair.drafter.config.max_position_embeddings
    configuration = replace(pair.configuration, block_size=block_size)
    if trained is None or prompt_tokens <= trained:
        return configuration
    return configuration.noting(
        f"the drafter was trained for contexts of {trained} tokens: fewer drafts hit"
    )


def _with_kernels(
    configuration: Configuration, target: Target, before: Counter[str]
) -> Configuration:
    """The configuration with the kernels that have run since `before`, by name."""
    if target.metal is None:
        return configuration
    ran = summary(target.metal.ran - before, target.serving.stock)
    return replace(configuration, kernels=ran)


def _saying_dtype(steps: Iterator[Step], dtype: str | None) -> Iterator[Step]:
    """Pass the steps on, and tell a person what to do where the drafter's values overflowed."""
    try:
        yield from steps
    except FloatingPointError as error:
        raise DFlashError(
            f"The drafter's values are not finite in {dtype}: choose another --dtype (float32 has"
            " the widest range), or --no-draft."
        ) from error


def _count(stats: Stats, step: Step, stopped: bool, limit: int) -> str | None:
    """Add a step to the statistics; the finish reason if it was the last."""
    if step.drafted:
        stats.accepted.append(step.accepted)
        stats.drafted.append(step.drafted)
    elif stats.generated_tokens:
        stats.plain_steps += 1
    if step.copied:
        stats.copied_rounds += 1
        stats.copied_tokens += step.accepted
    stats.host_reads += step.reads
    stats.generated_tokens += len(step.tokens)
    stats.peak_memory = mx.get_peak_memory()
    if stopped:
        return "stop"
    return "length" if stats.generated_tokens >= limit else None


def _check_tokens(pair: Pair, tokens: Sequence[int]) -> None:
    """Raise UsageError for ids outside the vocabulary: MLX would read or write beyond its end."""
    size = pair.target.vocab_rows
    for token in tokens:
        if not 0 <= token < size:
            raise UsageError(f"Token {token} is outside this model's vocabulary of {size} tokens.")


def _token_limit(pair: Pair, prompt_tokens: int, max_tokens: int | None) -> int:
    """How many tokens may follow the prompt: `max_tokens`, and never past the model's context."""
    if prompt_tokens == 0:
        raise DFlashError("The prompt is empty: give at least one token.")
    context_limit = pair.target.context_limit
    room = sys.maxsize if context_limit is None else context_limit - prompt_tokens
    if room < 1:
        raise DFlashError(
            f"The prompt has {prompt_tokens} tokens and the model's context holds {context_limit}:"
            " shorten the prompt or start a new conversation."
        )
    return room if max_tokens is None else min(max_tokens, room)
