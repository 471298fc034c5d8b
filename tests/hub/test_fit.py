"""What fits in a machine's memory: sizes in, a verdict out."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.hub.fit import (
    GIB,
    WORKING,
    CacheShape,
    Machine,
    Need,
    affine_bytes,
    cache_shape,
    loaded_bytes,
    this_machine,
)

MEMORIES = [8, 16, 24, 32, 36, 64, 128]


@pytest.mark.parametrize(
    ("gib", "metal", "usable"),
    [
        (8, True, 5.33),
        (16, True, 10.67),
        (32, True, 21.33),
        (36, True, 27.0),
        (64, True, 48.0),
        (128, True, 96.0),
        (8, False, 4.0),
        (16, False, 12.0),
        (64, False, 48.0),
    ],
)
def test_models_may_take_a_part_of_the_memory(gib: int, metal: bool, usable: float) -> None:
    assert Machine(gib * GIB, metal).usable / GIB == pytest.approx(usable, abs=0.01)


@pytest.mark.parametrize("gib", MEMORIES)
@pytest.mark.parametrize("metal", [True, False])
def test_a_reserve_always_stays_for_the_system(gib: int, metal: bool) -> None:
    assert gib * GIB - Machine(gib * GIB, metal).usable >= 2 * GIB


def test_no_machine_of_more_memory_gives_less() -> None:
    usable = [Machine(gib * GIB, True).usable for gib in MEMORIES]
    assert usable == sorted(usable)


def test_this_machine_has_the_memory_that_the_system_says() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert this_machine().memory == pages


# A pair of 4 GiB whose caches take 1 MiB a token, on a Mac of 16 GiB, of which 10.67 are usable.
MAC = Machine(16 * GIB, True)
NEED = Need(weights=4 * GIB, token_bytes=GIB // 1024)


@pytest.mark.parametrize(
    ("context", "fits"), [(0, True), (5 * 1024, True), (6 * 1024, False), (100 * 1024, False)]
)
def test_weights_caches_and_working_memory_count(context: int, fits: bool) -> None:
    assert NEED.bytes_at(context) == 4 * GIB + context * GIB // 1024 + WORKING
    assert NEED.fits(MAC, context) is fits


def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    longest = NEED.longest_context(MAC)
    assert NEED.fits(MAC, longest)
    assert not NEED.fits(MAC, longest + 1)


def test_weights_that_are_too_large_leave_room_for_nothing() -> None:
    huge = Need(weights=64 * GIB, token_bytes=1)
    assert huge.longest_context(MAC) == 0
    assert not huge.fits(MAC, 0)


def test_four_bits_in_groups_of_64_are_four_and_a_half_as_mlx_stores_them() -> None:
    weights = mx.zeros((64, 256))
    stored = sum(
        array.astype(array.dtype).nbytes for array in mx.quantize(weights.astype(mx.float16))
    )
    assert affine_bytes(64 * 256) == stored
    assert affine_bytes(8.03e9) == pytest.approx(4.52e9, rel=0.001)  # a published 8B's file


DENSE = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({**DENSE, "head_dim": 128}, CacheShape(36, 8, 128)),
        ({**DENSE, "hidden_size": 2048}, CacheShape(36, 8, 64)),
        ({**DENSE, "head_dim": 128, "num_key_value_heads": None}, CacheShape(36, 32, 128)),
        ({"text_config": {**DENSE, "head_dim": 128}}, CacheShape(36, 8, 128)),
        ({**DENSE, "head_dim": 256, "full_attention_interval": 4}, CacheShape(9, 8, 256)),
        (
            {
                **DENSE,
                "head_dim": 256,
                "global_head_dim": 512,
                "num_global_key_value_heads": 4,
                "layer_types": ["sliding_attention", "full_attention", "linear_attention"],
            },
            CacheShape(1, 4, 512),
        ),
        ({"model_type": "mamba"}, None),
    ],
)
def test_only_layers_that_remember_every_token_grow(
    config: dict[str, object], shape: CacheShape | None
) -> None:
    assert cache_shape(config) == shape


def test_a_token_has_keys_and_values_in_every_layer_and_head() -> None:
    assert CacheShape(36, 8, 128).token_bytes(float_bytes=2) == 2 * 36 * 8 * 128 * 2


def test_floats_are_loaded_in_the_width_of_the_machine_and_packed_weights_as_they_are(
    tmp_path: Path,
) -> None:
    arrays = {"norm": mx.zeros((10,), mx.bfloat16), "packed": mx.zeros((7,), mx.uint32)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    assert loaded_bytes(tmp_path, Machine(GIB, metal=True).float_bytes) == 10 * 2 + 7 * 4
    assert loaded_bytes(tmp_path, Machine(GIB, metal=False).float_bytes) == 10 * 4 + 7 * 4
