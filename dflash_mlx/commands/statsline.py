"""What a generation tells of itself: a line or a list for people, one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..engine.events import STOCK_KERNELS, Configuration, Result, Stats

_ENDINGS = {"stop": "", "length": ", cut off at the limit", None: ", interrupted"}
_DOT = " · "


def format_stats(stats: Stats, finish_reason: str | None) -> str:
    """The line that is shown after a reply: how fast, by what means, and what ran, in short.

    `finish_reason` None means that the reply was interrupted. A part that has no figure, such as
    the speed of a single token, is left out. `list_stats` has the rest.
    """
    ran = stats.configuration
    names = (ran.model, ran.draft_model) if _drafts(ran) else (ran.model,)
    short = [(name or "").rpartition("/")[2] for name in names]
    how = [ran.target_dtype.partition(" ")[0], *_machine(ran)]
    how += [ran.kernels] if ran.kernels != STOCK_KERNELS else []
    what = [" + ".join(short), ", ".join(how), f"seed {stats.seed}"]
    return _DOT.join([*_figures(stats, finish_reason), *what])


def list_stats(stats: Stats, finish_reason: str | None) -> list[str]:
    """The same and what else is known of a reply, one fact a string."""
    ran = stats.configuration
    facts = [*_figures(stats, finish_reason), f"target {ran.model}, {ran.target_dtype}"]
    if _drafts(ran):
        size = f", drafting {ran.draft_vocab:,} tokens" if ran.draft_vocab else ""
        facts.append(f"drafter {ran.draft_model}, {ran.draft_dtype}{size}")
    facts += [", ".join([*_machine(ran), f"kernels: {ran.kernels}"]), f"seed {stats.seed}"]
    if stats.acceptance_by_position:
        shares = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
        facts.append(f"accepted at each place of a block: {shares}")
    if stats.copied_rounds:
        rounds = _count(stats.copied_rounds, "round")
        facts.append(f"copied from the context: {stats.copied_tokens} tokens in {rounds}")
    return facts


def fold(line: str, width: int | None) -> str:
    """Break a line of statistics between its parts where it is wider than `width` characters."""
    if width is None:
        return line
    parts = line.split(_DOT)
    lines = [parts[0]]
    for part in parts[1:]:
        longer = lines[-1] + _DOT + part
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


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
        "drafted": list(stats.drafted),
        "plain_steps": stats.plain_steps,
        "copied_rounds": stats.copied_rounds,
        "copied_tokens": stats.copied_tokens,
        "host_reads": stats.host_reads,
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "model_seconds": stats.model_seconds,
        "tokens_per_second": stats.tokens_per_second,
        "peak_memory_bytes": stats.peak_memory,
        "seed": stats.seed,
        "configuration": asdict(stats.configuration) | {"notes": list(stats.configuration.notes)},
    }


def _drafts(configuration: Configuration) -> bool:
    """Whether a drafter took part; a block of one row has no place for a draft."""
    return configuration.draft_model is not None and configuration.block_size > 1


def _figures(stats: Stats, finish_reason: str | None) -> list[str]:
    """Speed, counts, times and memory, as far as there are any."""
    speed = stats.tokens_per_second
    parts = [
        f"{speed:.1f} tokens/s" if speed is not None else "",
        _drafting(stats),
        f"{_count(stats.generated_tokens, 'token')}{_ENDINGS[finish_reason]}",
        _prompt(stats),
        f"first token after {stats.prefill_seconds:.2f} s",
        f"peak {_bytes(stats.peak_memory)}",
    ]
    return [part for part in parts if part]


def _drafting(stats: Stats) -> str:
    drafts = _drafts(stats.configuration)
    if not drafts and not stats.configuration.copies:
        return "plain decoding"
    if stats.rows is None or (stats.rounds == 0 and not stats.configuration.auto):
        return "too short to draft"  # the first token was the last, or the last but one
    if stats.acceptance_length is None:
        return f"{'no round drafted' if drafts else 'nothing copied'}, block auto: 1"
    rounds = _count(stats.rounds, "round")
    return f"acceptance length {stats.acceptance_length:.2f} in {rounds}, {_block(stats)}"


def _block(stats: Stats) -> str:
    """The rows of a block, and where they were chosen, the range and the mean over all passes."""
    if not stats.configuration.auto or stats.rows is None:
        return f"block {stats.configuration.block_size}"
    least, mean, most = stats.rows
    block = f"block auto: {least}-{most}, mean {mean:.1f}"
    return f"{block}, {stats.copied_rounds} copied" if stats.copied_rounds else block


def _prompt(stats: Stats) -> str:
    if stats.reused_tokens == 0:
        return f"prompt {stats.prompt_tokens}"
    new = stats.prompt_tokens - stats.reused_tokens
    return f"prompt {stats.reused_tokens} reused + {new} new"


def _machine(configuration: Configuration) -> list[str]:
    """What computed. The BLAS is told where it did, on a CPU; Metal does not use it."""
    blas = configuration.blas if "blas" in configuration.blas else f"{configuration.blas} BLAS"
    parts = [configuration.device]
    parts += [blas] if configuration.device == "cpu" else []
    parts += [] if configuration.compiled else ["not compiled"]
    parts += ["exact"] if configuration.exact else []
    return parts


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
