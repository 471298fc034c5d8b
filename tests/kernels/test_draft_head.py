"""The draft head: the best tokens of float64, ties to the lower id, noise that is the engine's."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import MODELS, Simulator

from dflash_mlx.engine.noise import gumbel, stream_key, threefry
from dflash_mlx.kernels.block_matmul import Weights
from dflash_mlx.kernels.draft_head import SPAN, Noise, Ranked, Scoring, draft_head, twin
from dflash_mlx.kernels.metal import Metal

from .oracle import same_bits, wide

pytestmark = pytest.mark.simulator

INNER = 32


def head(vocabulary: int, bits: int = 0, dtype: mx.Dtype = mx.float32) -> Weights:
    matrix = mx.random.normal((vocabulary, INNER), key=mx.random.key(vocabulary)).astype(dtype)
    return Weights(*mx.quantize(matrix, 32, bits), 32, bits) if bits else Weights(matrix)


def hidden(rows: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return (mx.random.normal((rows, INNER), key=mx.random.key(rows)) / 4).astype(dtype)


def logits64(x: mx.array, weights: Weights) -> np.ndarray:
    matrix = weights.matrix
    if weights.scales is not None:
        scales, biases = (part.astype(mx.float32) for part in weights[1:3] if part is not None)
        matrix = mx.dequantize(matrix, scales, biases, weights.group_size, weights.bits)
    return wide(x) @ wide(matrix).T


def check(ranked: Ranked, logits: np.ndarray, count: int) -> None:
    """Scores are the best ones, ids are theirs, and no id comes twice."""
    best = -np.sort(-logits, axis=-1)[:, :count]
    ids = np.array(ranked.ids)
    assert np.allclose(wide(ranked.scores), best, atol=1e-5)
    assert np.allclose(np.take_along_axis(logits, ids, axis=-1), best, atol=1e-5)
    assert all(len(set(row)) == count for row in ids.tolist())
    top = logits.max(-1, keepdims=True)
    expected = (top + np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:, 0]
    assert np.allclose(wide(ranked.logsumexp), expected, atol=1e-5)


@settings(max_examples=8)
@given(
    rows=st.integers(1, 8),
    vocabulary=st.sampled_from([8, 127, 128, 129, SPAN, SPAN + 1, 2 * SPAN + 200]),
)
def test_the_best_tokens_are_those_of_float64(rows: int, vocabulary: int, metal: Metal) -> None:
    x, weights = hidden(rows), head(vocabulary)
    expected = logits64(x, weights)
    check(draft_head(x, weights, 5, metal=metal), expected, 5)
    check(twin(x, weights, 5), expected, 5)


@pytest.mark.parametrize(
    ("dtype", "bits", "rows", "count"),
    [(mx.bfloat16, 4, 15, 1), (mx.float16, 8, 3, 40), (mx.bfloat16, 4, 32, 64)],
)
def test_quantized_heads_and_longer_lists(
    dtype: mx.Dtype, bits: int, rows: int, count: int, metal: Metal
) -> None:
    x, weights = hidden(rows, dtype), head(300, bits, dtype)
    check(draft_head(x, weights, count, metal=metal), logits64(x, weights), count)


def test_equal_scores_go_to_the_lower_id(metal: Metal) -> None:
    """Also where equals lie in different spans, and in a draft vocabulary."""
    one = mx.random.normal((1, INNER), key=mx.random.key(1))
    weights = Weights(mx.concatenate([mx.zeros((2, INNER)), mx.repeat(one, SPAN + 6, axis=0)]))
    ranked = draft_head(one, weights, 3, metal=metal)
    assert ranked.ids.tolist() == [[2, 3, 4]]
    tokens = mx.arange(SPAN + 8, dtype=mx.int32) * 2 + 1
    ranked = draft_head(one, weights, 3, Scoring(tokens), metal)
    assert ranked.ids.tolist() == [[5, 7, 9]]


def noise(rows: int, temperature: float) -> Noise:
    key, position = stream_key(7), 100
    places = np.arange(position, position + rows, dtype=np.uint32)
    keys = (np.full(rows, key[0], np.uint32), np.full(rows, key[1], np.uint32))
    streams = np.stack(threefry(keys, (places, np.zeros_like(places))), axis=1)
    return Noise(mx.array(streams), partial(gumbel, key, position), temperature)


def test_noise_is_the_engines_bit_for_bit(metals: dict[str, Metal]) -> None:
    """Logits of zero leave nothing but the noise."""
    rows, vocabulary = 4, 1300
    weights = Weights(mx.zeros((vocabulary, INNER)))
    drawn = noise(rows, 1.0)
    ids = mx.broadcast_to(mx.arange(vocabulary)[None], (rows, vocabulary))
    expected = -mx.sort(-drawn.gumbel(ids), axis=-1)[:, :64]
    for model in ("default", "uncontracted", "flush"):
        ranked = draft_head(hidden(rows), weights, 64, Scoring(noise=drawn), metals[model])
        assert same_bits(ranked.scores, expected)


@pytest.mark.parametrize("rows", [3, 4])  # 6 and 8 words of streams: MLX passes them differently
def test_temperature_cap_and_a_draft_vocabulary_are_the_twins(rows: int, metal: Metal) -> None:
    x, weights, tokens = hidden(rows), head(200), mx.arange(200, dtype=mx.int32) * 3
    for drawn in (None, noise(rows, 0.7)):
        scoring = Scoring(tokens, multiplier=0.5, softcap=2.0, noise=drawn)
        ours = draft_head(x, weights, 5, scoring, metal)
        theirs = twin(x, weights, 5, scoring)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert mx.allclose(ours.scores, theirs.scores, atol=1e-5)
        assert mx.allclose(ours.logsumexp, theirs.logsumexp, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    model: str, metals: dict[str, Metal]
) -> None:
    x, weights = hidden(16, mx.bfloat16), head(SPAN + 40, 4, mx.bfloat16)
    together = draft_head(x, weights, 4, metal=metals[model])
    for row in (0, 7, 15):
        alone = draft_head(x[row : row + 1], weights, 4, metal=metals[model])
        assert alone.ids.tolist() == together.ids[row : row + 1].tolist()
        assert same_bits(alone.scores, together.scores[row : row + 1])
        assert same_bits(alone.logsumexp, together.logsumexp[row : row + 1])


def test_weights_are_read_once_and_logits_never_written(metal: Metal, simulator: Simulator) -> None:
    rows, count = 15, 4
    x, weights = hidden(rows, mx.bfloat16), head(2 * SPAN, 4, mx.bfloat16)
    with simulator.counting() as counts:
        draft_head(x, weights, count, metal=metal)
    read = sum(counts.buffers[name].read_bytes for name in ("weights", "scales", "biases"))
    assert read == sum(part.nbytes for part in weights[:3] if isinstance(part, mx.array))
    written = sum(buffer.written_bytes for buffer in counts.buffers.values())
    assert written == rows * (2 * (8 * count + 8) + 8 * count + 4)
    assert counts.launches == 2


def test_a_row_of_nan_shows_in_its_logsumexp(metal: Metal) -> None:
    x = mx.concatenate([hidden(1), mx.full((1, INNER), mx.nan)])
    ranked = draft_head(x, head(200), 5, metal=metal)
    assert mx.isnan(ranked.logsumexp).tolist() == [False, True]


def test_what_the_kernel_cannot_take_runs_as_the_twin() -> None:
    metal = Metal()
    draft_head(hidden(2), head(100), 65, metal=metal)
    assert metal.ran == {"draft_head: twin, 65 candidates": 1}
