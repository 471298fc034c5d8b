"""The public functions. Nothing here imports MLX before the machine is prepared for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .backend import prepare
from .engine.events import Event, Result
from .engine.options import Options, Processor
from .errors import UsageError

if TYPE_CHECKING:
    from .engine.context import Progress
    from .hub.embedded import SetupProgress
    from .pair import Pair

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A raw text, token ids, or messages (`{"role": ..., "content": ...}`) for the chat template."""


def load(
    model: str | Path | None = None,
    draft_model: str | Path | None = "auto",
    *,
    dtype: str | None = None,
    exact: bool = False,
    kv_bits: int | None = None,
    context: int | None = None,
    cache_dir: Path | None = None,
    kernels: bool = True,
    progress: SetupProgress | None = None,
) -> Pair:
    """Load a pair.

    model: a local MLX folder, a hub repository, or None for the embedded `smollm2-135m`.
    draft_model: likewise; "auto" finds the model's known drafter, None loads none (plain decoding).
    dtype: of activations and float weights: "float32", "bfloat16" or "float16"; None suits the
    machine. exact: only run where k rows give the same bits as k single rows.
    kv_bits: 4 or 8 keep keys and values of the context quantized, which some models cannot.
    context: the longest conversation, in tokens, for target and drafter alike; by default as the
    model was made for. A model that has no room for it (by default for 4,096) is not fetched.
    cache_dir: where the embedded model is kept, and what rounds cost on this machine; by default
    ~/.cache/dflash-mlx.
    kernels: False leaves a Mac's GPU to MLX's own kernels, and skips the race at the first load; on
    a CPU it leaves mlx-lm's layers as they are.
    progress: told how a first set-up of the embedded pair goes.

    Raises DFlashError where a file is missing or broken, or the two do not belong together.
    """
    backend = prepare(exact=exact)
    from .hub.pairs import resolve_pair
    from .hub.store import cache_root
    from .pair import load_pair

    if context is not None and context < 2:
        raise UsageError(f"context must be 2 tokens or more; it is {context}.")
    names = resolve_pair(
        model, draft_model, progress, root=cache_dir, context=context, kv_bits=kv_bits
    )
    costs = (cache_dir or cache_root()) / "costs"
    return load_pair(names, dtype, backend, kv_bits, costs, own_kernels=kernels)


def stream_generate(
    pair: Pair,
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    block_size: int | Literal["auto"] | None = "auto",
    draft: bool = True,
    copy: bool | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    top_k: int | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int | None = None,
    presence_penalty: float | None = None,
    presence_context_size: int | None = None,
    frequency_penalty: float | None = None,
    frequency_context_size: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    logits_processors: Sequence[Processor] = (),
    progress: Progress | None = None,
) -> Iterator[Event]:
    """Continue `prompt`: one event for prefill's token, then one a round.

    A string is a raw prompt; messages go through the chat template. Sampling arguments left None
    take the pair's defaults, else greedy. `max_tokens` None means to the context's end.
    `block_size` "auto" chooses the rows of each round, after measuring once what rounds cost on
    this machine, and takes drafts from the context too: with `copy` True even where no drafter
    drafts, with False never. None is the drafter's own block.
    `logits_processors` are called as `(tokens so far, logits [V]) -> logits [V]`, once for every
    emitted token. `progress` is told (done, total) of prefill.
    """
    from .engine.generation import stream

    given = {
        "temperature": temperature,
        "top_p": top_p,
        "min_p": min_p,
        "top_k": top_k,
        "repetition_penalty": repetition_penalty,
        "repetition_context_size": repetition_context_size,
        "presence_penalty": presence_penalty,
        "presence_context_size": presence_context_size,
        "frequency_penalty": frequency_penalty,
        "frequency_context_size": frequency_context_size,
        "logit_bias": logit_bias,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options = Options(
        sampling=replace(pair.defaults, **chosen),
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        seed=seed,
        block_size=block_size,
        draft=draft,
        copy=copy,
        processors=tuple(logits_processors),
    )
    return stream(
        pair,
        pair.context(),
        encode(pair, prompt),
        options,
        continuing=isinstance(prompt, str),
        progress=progress,
    )


def generate(pair: Pair, prompt: Prompt, **arguments: Any) -> Result:
    """Like `stream_generate`, with the same arguments, but wait for the whole."""
    return gather(list(stream_generate(pair, prompt, **arguments)))


def gather(events: Sequence[Event]) -> Result:
    """The whole of a generation from all of its events."""
    return Result(
        "".join(event.text for event in events),
        "".join(event.thinking for event in events),
        [token for event in events for token in event.tokens],
        events[-1].finish_reason or "",
        events[-1].stats,
    )


def encode(pair: Pair, prompt: Prompt) -> list[int]:
    """Token ids of a prompt of any of its three forms. Raises UsageError for another."""
    if isinstance(prompt, str):
        return pair.encode_text(prompt)
    ids = [item for item in prompt if isinstance(item, int)]
    messages = [item for item in prompt if isinstance(item, Mapping)]
    if len(ids) == len(prompt):
        return ids
    if len(messages) == len(prompt):
        return pair.encode(pair.render(messages))
    raise UsageError("A prompt is a text, a list of token ids or a list of messages.")
