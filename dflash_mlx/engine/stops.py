"""What ends a reply: the target's own end-of-text tokens, and strings that the caller names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class StopStrings:
    """Text in, piece by piece; out comes what is sure to lie before the first stop string.

    The first match is the one that is complete first; if several are complete at the same
    character, the longest. So the result does not depend on how the text was cut into pieces, and
    a reply ends with the very token that completes a stop string. Text that may be the beginning
    of one is held back; `found` says whether one was met. The cost is linear in the text: only
    what is held back is looked at twice.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise ValueError("a stop string must not be empty")
        self._held = ""
        self.found = False

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to show, and whether a stop string was met.

        Once one was met, whatever else is pushed is dropped.
        """
        if self.found:
            return "", True
        text = self._held + text
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if matches:
            self._held, self.found = "", True
            _, start = min(matches)
            return text[:start], True
        safe = len(text) - unfinished_match(text, self._stops)
        self._held = text[safe:]
        return text[:safe], False

    def finish(self) -> str:
        """Return what was held back; the text is over, so it was no stop string after all."""
        held, self._held = self._held, ""
        return held


def unfinished_match(text: str, patterns: Iterable[str]) -> int:
    """Return the length of the longest end of `text` with which a pattern begins, but not ends."""
    return max((_overlap(text, pattern) for pattern in patterns), default=0)


def _overlap(text: str, pattern: str) -> int:
    lengths = range(min(len(pattern) - 1, len(text)), 0, -1)
    return next((length for length in lengths if pattern.startswith(text[-length:])), 0)


def stop_token_ids(
    tokenizer: Any, config: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> frozenset[int]:
    """Return every token that ends a reply, as any of the model's own files has it.

    The union of `eos_token_id` (one id or a list, at the top or in `text_config`) of `config.json`
    and `generation_config.json`, and of the tokenizer's `eos_token_id` and `eos_token_ids`
    (mlx-lm's wrapper). A model whose files disagree must stop at each of them.
    """
    named: set[int] = set()
    for source in (config, generation_config):
        named.update(_ids(source.get("eos_token_id")))
        named.update(_ids((source.get("text_config") or {}).get("eos_token_id")))
    for name in ("eos_token_id", "eos_token_ids"):
        named.update(_ids(getattr(tokenizer, name, None)))
    return frozenset(named)


def _ids(value: int | Iterable[int] | None) -> Iterable[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value
