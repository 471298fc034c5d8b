"""The drafter's likeliest tokens, ranked on the device: no row of logits is ever written."""

from __future__ import annotations

import mlx.core as mx

from ..drafter.dflash2 import SecondDrafter
from ..drafter.model import Drafter
from ..kernels.draft_head import Ranked, Scoring, by_kernel
from ..target.draft_head import DraftHead, bare_weights
from ..target.model import Target


class Ranking:
    """Ranks tokens by the drafter's logits, through `head` or else the target's."""

    def __init__(self, target: Target, drafter: Drafter, head: DraftHead | None) -> None:
        self._metal = target.metal
        config = drafter.config
        tokens = head.ids if head else None
        self._scoring = Scoring(tokens, config.output_multiplier, config.logit_softcap)
        self._weights = head.weights if head else bare_weights(target.head_module)
        if self._weights is not None and head is None and isinstance(drafter, SecondDrafter):
            known = drafter.candidate_selector.successor_codebook.shape[0]
            self._weights = self._weights.rows(0, known)  # a head may have rows to spare

    def best(self, hidden: mx.array, count: int | None) -> Ranked | None:
        """The `count` best tokens of each row of `hidden` [n, D]; None where no kernel gives them.

        `count` None stands for all tokens: penalties may move any of them.
        """
        weights, metal = self._weights, self._metal
        if metal is None:
            return None
        if weights is None or count is None:
            metal.serves("draft_head", "a head that is no bare matrix" if count else "penalties")
            return None
        count = min(count, weights.shape[0])
        return by_kernel(hidden, weights, count, self._scoring, metal)
