"""z-lab's own reference (`dflash` 0.1.0, with torch) reads what we export, and agrees.

Optional: it runs where torch and `dflash` are installed.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.drafter import load_drafter
from dflash_mlx.training.architecture import make_drafter, new_config
from dflash_mlx.training.checkpoint import write_drafter
from dflash_mlx.training.export import Facts, export
from dflash_mlx.training.initial import random_weights
from dflash_mlx.training.settings import RunSettings
from tests.tiny_folders import tiny_pair

torch = pytest.importorskip("torch")
reference = pytest.importorskip("dflash.model")


def test_the_reference_gives_our_logits(tmp_path: Path) -> None:
    pair = tiny_pair()
    config = new_config(pair, RunSettings(layers=2))
    (tmp_path / "trained").mkdir()
    weights = random_weights(make_drafter(config), pair.target, 0)
    write_drafter(tmp_path / "trained", config, weights)
    facts = Facts(target="tiny", data={}, recipe={}, figures=[])
    export(tmp_path / "trained", tmp_path / "out", "tiny", facts, "cpu")
    folder = tmp_path / "out" / "zlab"
    rng = np.random.default_rng(0)
    width, context, rows = config["hidden_size"], 11, config["block_size"]
    taps = len(config["dflash_config"]["target_layer_ids"])
    features = rng.standard_normal((1, context, taps * width)).astype(np.float32)
    embeddings = rng.standard_normal((1, rows, width)).astype(np.float32)
    ours = load_drafter(folder, mx.float32)
    cache = ours.make_cache()
    hidden = ours.hidden_states(mx.array(embeddings), mx.array(features), cache)
    logits = np.array(ours.logits(hidden, pair.target.head))
    theirs = reference.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32)
    theirs.eval()
    with torch.inference_mode():
        states = theirs(
            position_ids=torch.arange(context + rows)[None],
            noise_embedding=torch.from_numpy(embeddings),
            target_hidden=torch.from_numpy(features),
            use_cache=False,
        )
    table = np.array(pair.target.embedding.weight.astype(mx.float32))
    assert np.abs(states.numpy() @ table.T - logits).max() < 1e-3
