"""Rotary positions: the drafter's one table of frequencies, in the four scalings that occur."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import mlx.core as mx

from ..errors import DFlashError

_LENGTH = "original_max_position_embeddings"
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
    "yarn": ("factor", _LENGTH),
}
"""The types of rope scaling that are known, and the numbers that each needs."""


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles.

    `theta` is the base wavelength. `scaling` holds the numbers of a config's `rope_scaling` or
    `rope_parameters` that the type `kind` uses. `interleaved` pairs neighbouring channels
    (LFM2.5) instead of the two halves of a head.
    """

    theta: float
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            known = ", ".join(SCALINGS)
            raise DFlashError(f"The rope type '{self.kind}' is not supported; known: {known}.")
        for name in ("theta", *SCALINGS[self.kind]):
            value = self.theta if name == "theta" else self.scaling.get(name)
            if not is_number(value) or value <= 0:
                raise DFlashError(
                    f"The drafter's rope of type '{self.kind}' needs {name} as a number above 0; "
                    f"it is {value!r}."
                )


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether `value` is a finite number of JSON; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


Position = int | mx.array
"""Where a block or a sequence begins: the same for all of a batch, or int32 `[B]`."""


class Rope:
    """Rotates `[B, H, S, d]` rows that stand at positions `offset .. offset + S - 1`."""

    def __init__(self, config: RopeConfig, dims: int):
        self.dims = dims
        self.interleaved = config.interleaved
        self.base: float | None = config.theta
        self.position_scale = 1.0
        self.magnitude = 1.0
        self.wavelengths: mx.array | None = None
        if config.kind == "linear":
            self.position_scale = 1.0 / config.scaling["factor"]
        elif config.kind == "llama3":
            self.base, self.wavelengths = None, _llama3(config, dims)
        elif config.kind == "yarn":
            self.base, self.wavelengths = None, _yarn(config, dims)
            self.magnitude = _yarn_magnitude(config.scaling)
        if self.wavelengths is not None:
            mx.eval(self.wavelengths)  # left lazy, they would serve this thread alone

    def __call__(self, x: mx.array, offset: Position) -> mx.array:
        if self.magnitude != 1.0:
            x = x * self.magnitude
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.interleaved,
            base=self.base,
            scale=self.position_scale,
            offset=offset,
            freqs=self.wavelengths,
        )


def _wavelengths(theta: float, dims: int) -> mx.array:
    """Positions per radian of each of the `dims / 2` channel pairs, in float32."""
    exponents: mx.array = mx.arange(0, dims, 2, dtype=mx.float32) / dims
    return theta**exponents


def _llama3(config: RopeConfig, dims: int) -> mx.array:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, the middle blended."""
    scaling, plain = config.scaling, _wavelengths(config.theta, dims)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling[_LENGTH] / (2 * math.pi * plain)
    kept = mx.clip((turns - low) / (high - low), 0, 1)
    return 1 / (kept / plain + (1 - kept) / (scaling["factor"] * plain))


def _yarn(config: RopeConfig, dims: int) -> mx.array:
    """YaRN (arXiv 2309.00071): stretch by `factor` the pairs that turn fewer than beta times."""
    scaling, plain = config.scaling, _wavelengths(config.theta, dims)

    def pair_turning(times: float) -> float:
        length = scaling[_LENGTH]
        return dims * math.log(length / (times * 2 * math.pi)) / (2 * math.log(config.theta))

    low = pair_turning(scaling.get("beta_fast") or 32)
    high = pair_turning(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    pairs: mx.array = mx.arange(dims // 2, dtype=mx.float32)
    stretched = mx.clip((pairs - low) / (high - low), 0, 1)
    return 1 / (stretched / (scaling["factor"] * plain) + (1 - stretched) / plain)


def _yarn_magnitude(scaling: Mapping[str, Any]) -> float:
    """The factor on rotated queries and keys: given, or 0.1 ln(factor) + 1 as in the paper."""
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(max(scaling["factor"], 1)) + 1.0

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(all_dim) if mscale and all_dim else magnitude(1)
