"""A drafter by kernels: the reference's rows and drafts, and no sum in plain MLX."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from simulator import Simulator

from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.drafter.serving import serve
from dflash_mlx.kernels.metal import Metal
from tests.drafter.tiny import rows, taps, tiny_config, tiny_drafter

pytestmark = pytest.mark.simulator
PARITY = Path(__file__).parent.parent / "data" / "parity"
KERNELS = {"block_matmul", "qkv_prologue", "block_attention"}


@pytest.mark.parametrize("name", ["dflash-full", "dflash-gqa-yarn", "dflash-sliding", "dflash2"])
def test_rows_and_drafts_are_the_references(name: str, counted_metal: Metal) -> None:
    drafter = load_drafter(PARITY / name)
    serve(drafter, counted_metal)
    reference = mx.load(str(PARITY / name / "reference" / "cycles.safetensors"))
    assert isinstance(reference, dict)
    cache = drafter.make_cache()
    cycles = sum(key.endswith(".start") for key in reference)
    assert cycles >= 3
    for cycle in range(cycles):
        block_ids, features, hidden, logits, tokens = (
            reference[f"cycle{cycle}.{part}"]
            for part in ("block_ids", "target_hidden", "hidden", "logits", "draft_tokens")
        )
        embeddings = reference["embed_tokens"][block_ids] * drafter.config.embedding_scale
        ours = drafter.hidden_states(embeddings, features, cache)
        assert mx.allclose(ours, hidden, rtol=0, atol=1e-3)
        our_logits = drafter.logits(ours[:, 1:], lambda rows: rows @ reference["lm_head"].T)
        assert mx.allclose(our_logits, logits, rtol=0, atol=1e-3)
        assert mx.array_equal(greedy(drafter, ours, block_ids, our_logits), tokens[0])
    assert set(counted_metal.ran) == KERNELS


def greedy(drafter: Drafter, hidden: mx.array, block: mx.array, logits: mx.array) -> mx.array:
    """What the drafter guesses without noise."""
    if not isinstance(drafter, SecondDrafter):
        return mx.argmax(logits[0], axis=-1)

    def best(_: int, ids: mx.array, scores: mx.array) -> mx.array:
        return mx.take_along_axis(ids, mx.argmax(scores, axis=-1, keepdims=True), axis=-1)[:, 0]

    return drafter.candidate_selector.walk(hidden[0, 1:], int(block[0, 0]), logits[0], best)


def test_a_layer_of_a_block_is_six_launches_of_ours_and_its_context_two(
    metal: Metal, simulator: Simulator
) -> None:
    """Stock MLX takes seven for the projections alone, and norms, ropes and copies on top."""
    drafter = tiny_drafter(tiny_config(intermediate_size=64))
    serve(drafter, metal)
    cache = drafter.make_cache()
    with simulator.counting() as context:
        drafter.extend(taps(5, drafter.config), cache)
    with simulator.counting() as block:
        drafter.block(rows(8, 32), cache)
    assert context.launches == 1 + 2 * drafter.config.num_layers
    assert block.launches == 6 * drafter.config.num_layers


@pytest.mark.parametrize("bits", [0, 4])
def test_joined_weights_are_in_memory_once(bits: int, metal: Metal) -> None:
    drafter = tiny_drafter(tiny_config(hidden_size=512, intermediate_size=1024))
    if bits:
        nn.quantize(drafter, group_size=32, bits=bits)
        mx.eval(drafter.parameters())
    mx.synchronize()
    before = mx.get_active_memory()
    serve(drafter, metal)
    assert mx.get_active_memory() - before < 0.01 * before
    gate = drafter.layers[0].mlp.gate_proj
    x = rows(40, 512)
    assert mx.array_equal(type(gate).__mro__[1].__call__(gate, x), gate(x)), "more rows: MLX's own"
    assert "block_matmul: twin, more than 32 rows" in metal.ran


def test_a_window_moved_on_changes_no_bit_of_a_blocks_rows(metal: Metal) -> None:
    """Attention is told where its buffer begins: the same rows, in a buffer that moved or not."""
    config = tiny_config(layer_types=("sliding_attention",) * 2, sliding_window=9)
    drafter = tiny_drafter(config)
    serve(drafter, metal)
    context, moved, still = taps(530, config), drafter.make_cache(), drafter.make_cache()
    for begin in range(0, 530, 10):
        drafter.extend(context[:, begin : begin + 10], moved)
    for layer in still.layers:
        layer.reserve(0, 600, like=mx.zeros((1, 2, 1, 8)))
    for begin in range(0, 530, 10):
        drafter.extend(context[:, begin : begin + 10], still)
    firsts = [layer.buffer.first for layer in moved.layers if layer.buffer]
    assert all(firsts), "the window has moved on"
    block = rows(8, 32)
    assert mx.array_equal(drafter.block(block, moved), drafter.block(block, still))
