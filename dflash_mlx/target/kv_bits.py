"""Whether a model can keep its keys and values quantized, and in groups of how many."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..errors import UsageError
from .caches import adapted

CHOICES = (4, 8)
_GROUPS = (64, 32)


def group_size(model: nn.Module, bits: int) -> int:
    """Values that share a scale in a cache of `bits` (4 or 8) bits.

    A pass is built and not computed, so the weights need not be loaded. Raises UsageError where
    the model's attention cannot read such a cache: windows, sinks, latent keys, narrow heads.
    """
    if bits not in CHOICES:
        raise UsageError(f"kv_bits must be 4 or 8; it is {bits}.")
    reason: Exception | None = None
    for group in _GROUPS:
        cache = [adapted(entry, bits, group) for entry in make_prompt_cache(model)]
        try:
            model(mx.array([[0, 0]]), cache=cache)
        except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            reason = error
        else:
            return group
    raise UsageError(
        f"This model cannot keep its keys and values in {bits} bits ({reason}): leave --kv-bits"
        " away."
    )
