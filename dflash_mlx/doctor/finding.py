"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """What a check found. "wrong" needs mending, a "note" is worth knowing; `cure` says what to do.

    `figures` are for programs.
    """

    check: str
    status: Status
    words: str
    cure: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For a person."""
        cure = f" -> {self.cure}" if self.cure else ""
        return f"{self.status:5}  {self.check}: {self.words}{cure}"
