"""A drafter fused for a CPU with OpenBLAS gives the rows of the plain one."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash_mlx.drafter import load_drafter
from dflash_mlx.drafter.fused import FusedMLP, fuse
from dflash_mlx.kernels.products import Narrowing
from tests.drafter.tiny import rows, taps, tiny_config, tiny_drafter

PARITY = Path(__file__).parent.parent / "data" / "parity"


@pytest.mark.parametrize("name", ["dflash-full", "dflash-gqa-yarn", "dflash-sliding", "dflash2"])
def test_rows_are_the_plain_drafters_over_rounds_and_a_rollback(name: str) -> None:
    plain, fused = load_drafter(PARITY / name, mx.float32), load_drafter(PARITY / name, mx.float32)
    fuse(fused)
    config = plain.config
    caches = plain.make_cache(), fused.make_cache()

    for length in (9, 3, 1):
        features = taps(length, config)
        block = rows(4, config.hidden_size)
        expected = plain.hidden_states(block, features, caches[0])
        ours = fused.hidden_states(block, features, caches[1])
        assert mx.allclose(ours, expected, atol=1e-4).item()
    assert all(type(layer.mlp) is FusedMLP for layer in fused.layers)


def test_its_wide_weights_lie_by_columns_and_all_are_the_same() -> None:
    plain, fused = tiny_drafter(tiny_config()), tiny_drafter(tiny_config())
    fuse(fused)

    narrowing = []
    for (name, one), (_, other) in zip(plain.named_modules(), fused.named_modules(), strict=True):
        if isinstance(one, nn.Linear):
            assert mx.array_equal(one.weight, other.weight).item(), name
            if type(other) is Narrowing:
                narrowing.append(name.rpartition(".")[2])
            else:
                assert np.array(other.weight, copy=False).strides[0] == 4, name
    assert {"fc", "o_proj", "down_proj"} <= set(narrowing)


def test_a_quantized_drafter_is_left_as_it_is() -> None:
    drafter = tiny_drafter(tiny_config(hidden_size=64, intermediate_size=64))
    nn.quantize(drafter, group_size=32, bits=8)

    fuse(drafter)

    assert not any(type(layer.mlp) is FusedMLP for layer in drafter.layers)
