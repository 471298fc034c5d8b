"""Will a pair fit in this machine's memory: arithmetic on sizes, and where sizes are read from."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model_folder import read_header, weight_files

GIB = 1 << 30
CONTEXT = 4096
"""Tokens of context that "fits" stands for."""
WORKING = GIB
"""Bytes for what is neither weights nor caches, an estimate: activations of a chunk of prefill,
the logits of a block, buffers that MLX keeps for reuse, windows and recurrent states."""
CHUNK = 512
"""Rows of a chunk of prefill, at most."""
_FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class Machine:
    """`memory` in bytes, and whether a GPU computes (Metal) or a CPU."""

    memory: int
    metal: bool

    @property
    def usable(self) -> int:
        """Bytes that models may take; the rest is the system's and other programs'.

        On a Mac, the least that Metal has been reported to recommend as its working set: two
        thirds of the memory, three quarters above 32 GiB. It gives more on recent systems.
        Elsewhere a quarter stays free, and at least 4 GiB.
        """
        if self.metal:
            share = 2 / 3 if self.memory <= 32 * GIB else 3 / 4
            return int(self.memory * share)
        return self.memory - max(self.memory // 4, 4 * GIB)

    @property
    def float_bytes(self) -> int:
        """Bytes of a float weight or of a number in a cache: a CPU computes in float32."""
        return 2 if self.metal else 4


def this_machine() -> Machine:
    """The machine that this runs on; a Mac's GPU is taken for granted (`backend` checks it)."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(memory, platform.system() == "Darwin")


@dataclass(frozen=True)
class CacheShape:
    """The part of a KV cache that grows with the context: full attention, no sliding windows."""

    layers: int
    heads: int
    head_dim: int

    def token_bytes(self, float_bytes: int) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.layers * self.heads * self.head_dim * float_bytes


@dataclass(frozen=True)
class Need:
    """What a pair takes: bytes of both models' weights, and of both caches for one token."""

    weights: int
    token_bytes: int

    def bytes_at(self, context: int = CONTEXT) -> int:
        """All that the pair takes with `context` tokens."""
        return self.weights + self.token_bytes * context + WORKING

    def fits(self, machine: Machine, context: int = CONTEXT) -> bool:
        """Whether `machine` can hold the pair with `context` tokens."""
        return self.bytes_at(context) <= machine.usable

    def longest_context(self, machine: Machine) -> int:
        """How many tokens of context `machine` has room for; 0 where the weights are too much."""
        return max(0, (machine.usable - self.weights - WORKING) // max(1, self.token_bytes))


def kv_bytes(shape: CacheShape, float_bytes: int, bits: int | None) -> int:
    """Bytes of one token's keys and values, in `bits` with a scale and a bias for every 64."""
    if bits is None:
        return shape.token_bytes(float_bytes)
    return round(shape.token_bytes(1) * (bits / 8 + 2 * float_bytes / 64))


def prefill_bytes(config: Mapping[str, Any], context: int, machine: Machine) -> int:
    """Bytes for a chunk of prefill, and for what is neither weights nor caches: an estimate.

    A layer's activations and, where attention is not fused (on a CPU; on Metal for heads wider
    than 128), its scores over the whole context; never less than `WORKING`.
    """
    text = {**config, **(config.get("text_config") or {})}
    hidden, heads = text.get("hidden_size") or 0, text.get("num_attention_heads") or 0
    wide = text.get("intermediate_size") or 4 * hidden
    activations = CHUNK * (8 * hidden + 3 * wide) * machine.float_bytes
    shape = cache_shape(config)
    fused = machine.metal and shape is not None and shape.head_dim <= 128
    scores = 0 if fused else CHUNK * context * heads * 4
    return max(WORKING, activations + scores)


def affine_bytes(parameters: float, bits: int = 4, group_size: int = 64) -> int:
    """Bytes of that many weights in MLX's affine quantization: each group has a scale and a bias.

    An estimate for a whole model: its norms, and layers kept unquantized, are ignored.
    """
    return round(parameters * (bits + 32 / group_size) / 8)


def loaded_bytes(folder: Path, float_bytes: int) -> int:
    """Bytes that the weights in `folder` take when loaded: floats of `float_bytes`, others as are.

    The least: a CPU widens quantized weights too where there is room. Raises DFlashError where
    the weights are broken.
    """
    return sum(
        math.prod(tensor.shape) * float_bytes if tensor.dtype in _FLOATS else tensor.nbytes
        for file in weight_files(folder)
        for tensor in read_header(file).values()
    )


def cache_shape(config: Mapping[str, Any]) -> CacheShape | None:
    """The growing part of a model's cache by its `config.json`; None where it does not say."""
    text = {**config, **(config.get("text_config") or {})}
    layers, queries = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not layers or not queries:
        return None
    heads = text.get("num_global_key_value_heads") or text.get("num_key_value_heads") or queries
    head_dim = text.get("global_head_dim") or text.get("head_dim")
    head_dim = head_dim or text.get("hidden_size", 0) // queries
    if kinds := text.get("layer_types"):
        layers = sum(kind == "full_attention" for kind in kinds)
    elif interval := text.get("full_attention_interval"):
        layers //= interval
    return CacheShape(layers, heads, head_dim)
