"""Will it fit? An estimate of a run's memory, made before its first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import DFlashError
from ..pair import Pair
from .blocks import Schedule
from .conversations import Conversation
from .settings import RunSettings

_SLACK = 1.2
"""Allocators and fragmentation; the parts below are counted, not measured."""


def estimate(
    pair: Pair,
    config: Mapping[str, Any],
    parameters: int,
    settings: RunSettings,
    conversations: Sequence[Conversation],
) -> int:
    """Bytes that training takes at its peak, beside the target's weights.

    `parameters` is how many weights the drafter has. Each batch of the first epoch is looked at: of
    short conversations a batch holds many, with anchors in each.
    """
    size = 4 if pair.target.dtype == mx.float32 else 2
    # Masters, gradients, AdamW's moments and their successors; the copy that computes.
    state = parameters * (6 * 4 + size)
    schedule = Schedule(
        conversations, settings.batch_tokens, settings.anchors, config["block_size"], settings.seed
    )
    passing = max(_passing(pair, config, settings, *shape) for shape in schedule.shapes())
    return int((state + passing) * _SLACK)


def _passing(
    pair: Pair,
    config: Mapping[str, Any],
    settings: RunSettings,
    sequences: int,
    length: int,
    anchors: int,
) -> int:
    """Bytes of the passes over one batch: `sequences` of `length`, with `anchors` in each.

    How many arrays a row has at the peak was fitted to MLX's own count in tiny steps, of 1 and 2
    layers, narrow and wide.
    """
    size = 4 if pair.target.dtype == mx.float32 else 2
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    queries = heads * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    taps = len(config["dflash_config"]["target_layer_ids"])
    tokens, rows = sequences * length, sequences * anchors * config["block_size"]
    of_target = pair.target.text_config
    kept = of_target.get("num_key_value_heads") or of_target["num_attention_heads"]
    kept *= of_target.get("head_dim") or hidden // of_target["num_attention_heads"]
    cache = tokens * 2 * kept * pair.target.num_layers * size
    features = tokens * taps * hidden * size * 2
    context = tokens * (4 * hidden + layers * 6 * keys) * size
    blocks = rows * layers * (8 * hidden + 6 * queries + 6 * keys + 6.5 * wide) * size
    around = rows * 10 * hidden * 4
    scores = rows * heads * (length + config["block_size"]) * 4 * (5 * layers + 2)
    vocabulary = settings.frequent_tokens or config["vocab_size"]
    if settings.frequent_tokens and settings.frequent_share < 1:
        vocabulary = config["vocab_size"]
    head = 6 * min(settings.head_rows, rows) * vocabulary * 4
    return int(max(cache + features, features + context + blocks + around + scores + head))


def available() -> int | None:
    """Bytes that this process may still take; None where that is not known."""
    if mx.metal.is_available():
        limit = mx.device_info().get("max_recommended_working_set_size")
        return int(limit) - mx.get_active_memory() if limit else None
    free = [_meminfo(), *_group_limits()]
    known = [number for number in free if number is not None]
    return min(known) if known else None


def check(needed: int, free: int | None) -> None:
    """Raise DFlashError, with the cures, for a run that cannot fit."""
    if free is not None and needed > free:
        raise DFlashError(
            f"This run would need about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free:"
            " lower --batch-tokens, --anchors, --max-length or --head-rows."
        )


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in values else None


def _group_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int | None]:
    """What the container allows beyond what it uses (cgroups, version 2).

    Files that were read or written count as used, and are dropped as soon as memory is asked for:
    cached features alone may fill it.
    """
    try:
        limit = (root / "memory.max").read_text(encoding="ascii").strip()
        used = int((root / "memory.current").read_text(encoding="ascii"))
        lines = (root / "memory.stat").read_text(encoding="ascii").splitlines()
        counts = {name: int(count) for name, count in map(str.split, lines)}
    except (OSError, ValueError):
        return []
    droppable = counts.get("active_file", 0) + counts.get("inactive_file", 0)
    return [] if limit == "max" else [int(limit) - used + droppable]
