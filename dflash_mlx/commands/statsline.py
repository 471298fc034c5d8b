"""What a generation tells of itself: one line for people, one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..engine.events import Configuration, Result, Stats

_ENDINGS = {"stop": "", "length": ", cut off at the limit", None: ", interrupted"}


def format_stats(stats: Stats, finish_reason: str | None) -> str:
    """Return the line that is shown after a reply: how fast, by what means, and what really ran.

    `finish_reason` None means that the reply was interrupted. A part that has no figure, such as
    the speed of a single token, is left out.
    """
    configuration = stats.configuration
    drafting = _drafts(configuration)
    speed = stats.tokens_per_second
    parts = [
        f"{speed:.1f} tokens/s" if speed is not None else "",
        _drafting(stats) if drafting else "plain decoding",
        f"{_count(stats.generated_tokens, 'token')}{_ENDINGS[finish_reason]}",
        _prompt(stats),
        f"first token after {stats.prefill_seconds:.2f} s",
        f"peak {_bytes(stats.peak_memory)}",
        _models(configuration, drafting),
        _machine(configuration),
        f"seed {stats.seed}",
    ]
    return " · ".join(part for part in parts if part)


def to_json(result: Result) -> dict[str, Any]:
    """Return a result as `--json` prints it; `null` stands for a figure that does not exist.

    Times are in seconds, memory in bytes. `accepted` has one number a round; plain decoding has no
    rounds. `text` is the answer and `thinking` the reasoning; `token_ids` are those of both.
    """
    stats = result.stats
    return {
        "text": result.text,
        "thinking": result.thinking,
        "token_ids": list(result.tokens),
        "finish_reason": result.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "generated_tokens": stats.generated_tokens,
        "rounds": stats.rounds,
        "accepted": list(stats.accepted),
        "acceptance_length": stats.acceptance_length,
        "acceptance_by_position": stats.acceptance_by_position,
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "tokens_per_second": stats.tokens_per_second,
        "peak_memory_bytes": stats.peak_memory,
        "seed": stats.seed,
        "configuration": asdict(stats.configuration) | {"notes": list(stats.configuration.notes)},
    }


def _drafts(configuration: Configuration) -> bool:
    """Whether a drafter took part; a block of one row has no place for a draft."""
    return configuration.draft_model is not None and configuration.block_size > 1


def _drafting(stats: Stats) -> str:
    block = f"block {stats.configuration.block_size}"
    if stats.acceptance_length is None:  # the first token was the last
        return f"no round, {block}"
    rounds = _count(stats.rounds, "round")
    return f"acceptance length {stats.acceptance_length:.2f} over {rounds}, {block}"


def _prompt(stats: Stats) -> str:
    prompt = f"prompt {stats.prompt_tokens}"
    if stats.reused_tokens == 0:
        return prompt
    new = stats.prompt_tokens - stats.reused_tokens
    return f"{prompt} ({stats.reused_tokens} reused + {new} new)"


def _models(configuration: Configuration, drafting: bool) -> str:
    target = f"{configuration.model} {configuration.target_dtype}"
    if not drafting:
        return target
    size = configuration.draft_vocab
    drafter = f"{configuration.draft_model} {configuration.draft_dtype}"
    drafter += f" ({size:,} tokens)" if size else ""
    if configuration.draft_dtype == configuration.target_dtype:
        return f"{configuration.model} + {drafter}"
    return f"{target} + {drafter}"


def _machine(configuration: Configuration) -> str:
    """What computed. The BLAS is told where it did, on a CPU; Metal does not use it."""
    blas = f"{configuration.blas} BLAS" if configuration.device == "cpu" else ""
    parts = [configuration.device, blas, configuration.kernels]
    parts += [] if configuration.compiled else ["not compiled"]
    parts += ["exact"] if configuration.exact else []
    return ", ".join(part for part in parts if part)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
