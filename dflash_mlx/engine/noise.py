"""Counter-based Gumbel noise: a pure function of seed, turn, retry, position and token.

Sampling adds this noise to the logits and takes the largest (the Gumbel-max trick), so a token is
drawn from the softmax, and yet two passes that look at the same position with the same seed draw
the same token. Drafter and target share the noise, and a rejected draft leaves no trace in it.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Its integers are the same on every device. So is the noise, as the logarithm
is a polynomial of single float32 operations in a fixed order (the coefficients of Cephes' logf).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

Key = tuple[int, int]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF
_LOG_COEFFICIENTS = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Threefry-2x32-20: two words for each key and counter.

    All four are broadcastable uint32 arrays, of NumPy or of MLX; so are the words.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << rotation) | (y >> (32 - rotation))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + (keys[(group + 2) % 3] + (group + 1))
    return x, y


def stream_key(seed: int, turn: int = 0, retry: int = 0) -> Key:
    """The key of one generation: every reply of a conversation, and every retry, has its own."""
    low, high, turns, retries = np.array([[seed & _WORD], [seed >> 32], [turn], [retry]], np.uint32)
    x, y = threefry((low, high), (turns, retries))
    return int(x[0]), int(y[0])


def _log(x: mx.array) -> mx.array:
    """Natural logarithm of float32 `x` in (0, 1), one rounded operation at a time."""
    bits = x.view(mx.uint32)
    exponent = (bits >> 23).astype(mx.int32) - 127
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).view(mx.float32)
    high = mantissa > 1.41421356
    f = mx.where(high, mantissa * 0.5, mantissa) - 1.0
    e = (exponent + high.astype(mx.int32)).astype(mx.float32)
    square = f * f
    tail = mx.array(_LOG_COEFFICIENTS[0], mx.float32)
    for coefficient in _LOG_COEFFICIENTS[1:]:
        tail = tail * f + coefficient
    tail = tail * f * square
    tail = tail + e * -2.12194440e-4
    tail = tail - 0.5 * square
    return f + tail + e * 0.693359375


def gumbel(key: Key, position: int, ids: mx.array) -> mx.array:
    """Standard Gumbel noise, float32, for token `ids[j, k]` at absolute position `position + j`.

    ids: [rows, candidates], any integer type. Each value depends on its own key, position and id
    alone, so it is the same whichever rows and candidates are asked for together.
    """
    positions = np.arange(position, position + ids.shape[0], dtype=np.uint32)[:, None]
    stream = np.array([[key[0]], [key[1]]], np.uint32)
    rows = threefry((stream[0], stream[1]), (positions, np.zeros_like(positions)))
    counter = ids.astype(mx.uint32)
    bits, _ = threefry((mx.array(rows[0]), mx.array(rows[1])), (counter, mx.zeros_like(counter)))
    # 23 bits and a half are all that float32 holds: with 24, the largest would round up to 1.
    uniform = ((bits >> 9).astype(mx.float32) + 0.5) * 2.0**-23
    return -_log(-_log(uniform))
