"""Which token does a row of a drafter's block predict? Where its packaging does not say, try.

Read wrongly, every draft is one place off: nothing fails, the text stays the target's own, and
the acceptance falls to about one token a round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .engine.events import acceptance_length
from .engine.generation import stream
from .engine.options import Options, Sampling

if TYPE_CHECKING:
    from .pair import Pair

TOKENS = 32
"""How many tokens are said under each reading."""
_QUESTION = "Count from one to twenty, in words."
_TEXT = "one, two, three, four, five, six, seven,"


def settle_rows(pair: Pair) -> Pair:
    """The pair with its drafter's rows read in the way that more drafts are right.

    One prompt is answered greedily under both readings; where both do equally well, what the
    packaging's name suggests is kept. A note in the configuration says which, and how they did.
    """
    assert pair.drafter is not None
    named = pair.drafter.config.drafts_from_anchor
    lengths = {reading: _acceptance(_reading(pair, reading)) for reading in (named, not named)}
    kept = max(lengths, key=lambda reading: lengths[reading])
    settled = _reading(pair, kept)
    note = (
        f"row j of the drafter is read as anchor + {'j + 1' if kept else 'j'}: on one prompt an"
        f" acceptance length of {lengths[kept]:.2f}, against {lengths[not kept]:.2f} otherwise"
    )
    return replace(settled, configuration=settled.configuration.noting(note))


def _reading(pair: Pair, drafts_from_anchor: bool) -> Pair:
    """The pair with its drafter, one and the same, read in that way."""
    drafter = pair.drafter
    assert drafter is not None
    drafter.config = replace(
        drafter.config, drafts_from_anchor=drafts_from_anchor, rows_in_doubt=False
    )
    rows = drafter.config.verified_rows
    return replace(pair, configuration=replace(pair.configuration, block_size=rows))


def _acceptance(pair: Pair) -> float:
    """The acceptance length over the first tokens of one answer."""
    if pair.tokenizer.has_chat_template:
        tokens = pair.encode(pair.render([{"role": "user", "content": _QUESTION}]))
    else:
        tokens = pair.encode_text(_TEXT)
    rows = pair.configuration.block_size
    options = Options(sampling=Sampling(), max_tokens=TOKENS, block_size=rows)
    stats = list(stream(pair, pair.context(), tokens, options))[-1].stats
    return acceptance_length(stats.accepted) or 1.0
