"""Where two answers that should be equal part, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..pair import Pair

CHUNK = 256


@dataclass(frozen=True)
class Difference:
    """Where two runs part: after `place` tokens of a reply one took `plain`, the other `drafted`.

    `margin` is how far apart the logits of the two tokens are, `second` how far the two best ones
    are, and `noise` how far rounding moves a logit between a pass over one row and over a block.
    """

    place: int
    plain: str
    drafted: str
    margin: float
    second: float
    noise: float

    @property
    def verdict(self) -> str:
        """A tie if rounding alone explains it: each of the two logits moves by `noise` at most."""
        return "tie" if self.margin <= 2 * self.noise else "BUG"

    def __str__(self) -> str:
        return (
            f"{self.verdict}: after {self.place} tokens {self.plain!r} became {self.drafted!r};"
            f" their logits differ by {self.margin:.4g} (the best two by {self.second:.4g}),"
            f" and rounding moves logits by up to {self.noise:.4g}"
        )


def explain(
    pair: Pair, prompt: list[int], plain: list[int], drafted: list[int], rows: int
) -> Difference:
    """The first difference of two replies, and how much of it is rounding."""
    both = enumerate(zip(plain, drafted, strict=False))
    place = next((i for i, (a, b) in both if a != b), min(len(plain), len(drafted)))
    before = prompt + plain[:place]
    alone, in_block = next_logits(pair, before, 1), next_logits(pair, before, rows)
    best = mx.sort(alone)[-2:]
    said = [reply[place] for reply in (plain, drafted) if place < len(reply)]
    # Of two replies of which one only ends earlier, no logits can tell why.
    margin = float(abs(alone[said[0]] - alone[said[1]])) if len(said) == 2 else float("inf")
    names = [
        pair.tokenizer.decode([reply[place]]) if place < len(reply) else "the end"
        for reply in (plain, drafted)
    ]
    noise = float(mx.abs(alone - in_block).max())
    return Difference(place, names[0], names[1], margin, float(best[1] - best[0]), noise)


def next_logits(pair: Pair, tokens: Sequence[int], rows: int) -> mx.array:
    """Logits [V], float32, after `tokens`, the last `rows` of which are forwarded in one pass."""
    cache = pair.target.make_cache()
    rest = max(0, len(tokens) - rows)
    for start in range(0, rest, CHUNK):
        chunk = mx.array([tokens[start : min(start + CHUNK, rest)]])
        pair.target.forward(chunk, cache)
        mx.eval([entry.state for entry in cache])
    logits, _ = pair.target.forward(mx.array([tokens[rest:]]), cache)
    return logits[0, -1].astype(mx.float32)
