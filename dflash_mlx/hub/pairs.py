"""Which folders make a pair: the names that a person gives, resolved for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PairFolders:
    """Local folders of a pair and the names to show for them; no drafter means plain decoding."""

    model: str
    model_folder: Path
    draft_model: str | None = None
    draft_folder: Path | None = None
