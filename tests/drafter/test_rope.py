"""Rotary positions agree with mlx-lm's, which other people's checkpoints were tried with."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from dflash_mlx.drafter.rope import Rope, RopeConfig

from .tiny import rows

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        ("default", {}),
        ("linear", {"factor": 2.0}),
        ("llama3", LLAMA3),
        ("yarn", YARN),
        ("yarn", YARN | {"beta_fast": 16, "beta_slow": 2}),
        ("yarn", YARN | {"mscale": 1.2, "mscale_all_dim": 0.7}),
    ],
)
def test_rows_are_turned_as_in_mlx_lm(
    kind: str, scaling: dict[str, Any], interleaved: bool
) -> None:
    x = rows(7, 32)[:, None]
    ours = Rope(RopeConfig(10000.0, kind, scaling, interleaved), 32)
    theirs = initialize_rope(32, 10000.0, interleaved, {"rope_type": kind, **scaling})
    for offset in (0, 5, 900):
        assert mx.allclose(ours(x, offset), theirs(x, offset), atol=1e-4)


def test_yarn_takes_a_given_attention_factor() -> None:
    x = rows(3, 32)[:, None]
    plain = Rope(RopeConfig(10000.0, "yarn", YARN | {"attention_factor": 1.0}), 32)
    strong = Rope(RopeConfig(10000.0, "yarn", YARN | {"attention_factor": 2.0}), 32)
    assert mx.allclose(strong(x, 4), 2 * plain(x, 4), atol=1e-5)
