"""No round copies a cache: what is written is read in the same evaluation, in that order.

MLX copies an array that is written while its old version is still wanted. Simulated kernels read
at once and would hide that, so kernels are stand-ins here, as lazy as MLX's, which compute nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.kernels.metal import Metal
from dflash_mlx.target.model import Target

from .pairs import CONFIGS, DIMS, HIDDEN, drafting, model_of

ROWS = 5000
BUFFER = 2 * ROWS * DIMS * 4
"""Bytes of a layer's keys, in float32."""


def lazy_kernel(**_: Any) -> Any:
    """A kernel that reads a word of each input and gives arrays of the right shapes."""

    def call(
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        **_: Any,
    ) -> list[mx.array]:
        words = [array.reshape(-1)[:1].astype(mx.float32) for array in inputs]
        word = mx.concatenate(words).sum()
        return [
            mx.broadcast_to(word.astype(dtype), shape) + mx.zeros(shape, dtype)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]

    return call


def test_a_stand_in_tells_a_copy() -> None:
    kernel, buffer = lazy_kernel(), mx.zeros((1, 2, ROWS, DIMS))
    mx.eval(buffer)
    call = {"output_shapes": [(8,)], "output_dtypes": [mx.float32]}
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    (read,) = kernel(inputs=[buffer], **call)
    buffer[..., :8, :] = 1.0
    mx.eval(read, buffer)
    assert mx.get_peak_memory() - before >= BUFFER, "read, then written"
    mx.reset_peak_memory()
    buffer[..., :8, :] = 2.0
    (read,) = kernel(inputs=[buffer], **call)
    mx.eval(read, buffer)
    assert mx.get_peak_memory() - before < BUFFER // 2, "written, then read"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_round_of_the_target_copies_no_cache(family: str) -> None:
    made = Target(model_of(family, mx.float32), CONFIGS[family], (0, 1), metal=Metal(lazy_kernel))
    cache = made.make_cache()
    for entry in cache:
        entry.update_and_fetch(*mx.zeros((2, 1, 2, ROWS, DIMS)))
    mx.eval([entry.state for entry in cache])
    peaks = []
    for _ in range(4):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        with made.round(cache, 8) as turn:
            logits, taps = turn.forward(mx.array([list(range(8))]))
            mx.eval(logits, taps)
            turn.commit(3)
        del logits, taps
        peaks.append(mx.get_peak_memory() - before)
    assert max(peaks) < BUFFER // 2
    assert mx.get_active_memory() <= before, "nothing is left over"


def test_a_round_of_the_drafter_copies_no_cache() -> None:
    metal = Metal(lazy_kernel)
    made = Target(model_of("qwen3", mx.float32), CONFIGS["qwen3"], (0, 1), metal=metal)
    at_work = drafting(made, metal, dtype=mx.float32)
    at_work.extend(mx.zeros((1, 2 * ROWS, 2 * HIDDEN)))
    mx.eval(at_work.context().arrays)
    peaks = []
    for _ in range(4):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        at_work.extend(mx.zeros((1, 3, 2 * HIDDEN)))
        drafts = at_work.propose(list(range(9)), 8, Chooser(Sampling()))
        mx.eval(drafts, at_work.arrays)
        peaks.append(mx.get_peak_memory() - before)
    assert max(peaks) < BUFFER // 2
