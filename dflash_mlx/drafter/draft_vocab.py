"""A draft vocabulary: the target's tokens that drafts may come from, beside a drafter's weights.

Drafts only guess, so a drafter need not rank the whole vocabulary: most answers are made of a
small part of it, and reading the target's LM head is a large part of drafting. The file
`draft_vocab.json` holds {"ids": [token ids of the target, ascending], "source": "their origin"}.

vLLM speculators say the same by two tensors: `d2t` [N] holds, for the drafter's token i, the
target's less i; `t2d` [V] is true for the target's tokens that are among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import DFlashError
from ..model_folder import read_json

FILE = "draft_vocab.json"


def read_draft_vocab(folder: Path) -> tuple[int, ...] | None:
    """The ids in `folder`; None if it has no such file. Raises DFlashError if they are no ids."""
    path = folder / FILE
    if not path.exists():
        return None
    ids: Any = read_json(path).get("ids")
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise DFlashError(f"{path} has no list of token ids as 'ids': remove it, or make it again.")
    return tuple(ids)


def mapped_vocab(arrays: Mapping[str, mx.array], vocab_size: int) -> list[int] | None:
    """The target's token for each of the drafter's, by the tensors `d2t` and `t2d`.

    None where there are none, or they map every token to itself. Raises DFlashError if the two
    contradict one another, or name no tokens of a vocabulary of `vocab_size`.
    """
    if "d2t" not in arrays and "t2d" not in arrays:
        return None
    chosen = _tokens(arrays["t2d"].astype(mx.int32)) if "t2d" in arrays else None
    if "d2t" not in arrays:
        ids = chosen or []
    else:
        ids = [i + int(offset) for i, offset in enumerate(arrays["d2t"].tolist())]  # type: ignore
        if chosen is not None and sorted(ids) != chosen:
            raise DFlashError(
                "The drafter's d2t and t2d contradict one another: they name different tokens. "
                "Fetch it again."
            )
    if not ids or not 0 <= min(ids) <= max(ids) < vocab_size or len(set(ids)) != len(ids):
        raise DFlashError(
            f"The drafter's d2t maps to no {len(ids)} different tokens of its vocabulary of "
            f"{vocab_size}: fetch it again."
        )
    return None if ids == list(range(vocab_size)) else ids


def _tokens(flags: mx.array) -> list[int]:
    return [i for i, flag in enumerate(flags.tolist()) if flag]  # type: ignore[arg-type]


def write_draft_vocab(folder: Path, ids: Sequence[int], source: str) -> None:
    """Write `ids`, ascending, with a word on where they come from."""
    content = {"source": source, "ids": sorted(ids)}
    (folder / FILE).write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
