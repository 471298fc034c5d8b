"""Counter-based Gumbel noise: a pure function of seed, turn, retry, position and token.

Sampling adds this noise to the logits and takes the largest (the Gumbel-max trick), so a token is
drawn from the softmax, and yet two passes that look at the same position with the same seed draw
the same token. Drafter and target share the noise, and a rejected draft leaves no trace in it.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Its integers are the same on every device. So is the noise, as the logarithm
is a polynomial of single float32 operations in a fixed order (the coefficients of Cephes' logf).
"""

from __future__ import annotations

import mlx.core as mx

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


def threefry(
    key: tuple[mx.array, mx.array], counter: tuple[mx.array, mx.array]
) -> tuple[mx.array, mx.array]:
    """Threefry-2x32-20 of broadcastable uint32 arrays: two words for each key and counter."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ mx.array(_PARITY, mx.uint32))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << rotation) | (y >> (32 - rotation))
            y = x ^ y
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + mx.array(group + 1, mx.uint32)
    return x, y


def stream_key(seed: int, turn: int = 0, retry: int = 0) -> Key:
    """The key of one generation: every reply of a conversation, and every retry, has its own."""
    words = [seed & _WORD, seed >> 32, turn, retry]
    first, second, third, fourth = (mx.array(word, mx.uint32) for word in words)
    x, y = threefry((first, second), (third, fourth))
    return x.item(), y.item()


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
    positions = mx.arange(position, position + ids.shape[0], dtype=mx.uint32)[:, None]
    zero = mx.array(0, mx.uint32)
    stream = (mx.array(key[0], mx.uint32), mx.array(key[1], mx.uint32))
    row = threefry(stream, (positions, zero))
    bits, _ = threefry(row, (ids.astype(mx.uint32), zero))
    uniform = ((bits >> 8).astype(mx.float32) + 0.5) * 2.0**-24
    return -_log(-_log(uniform))
