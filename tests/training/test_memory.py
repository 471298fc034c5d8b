"""The estimate of a run's memory, made before its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from dflash_mlx.training.corpus import Corpus
from dflash_mlx.training.memory import _group_limits
from dflash_mlx.training.settings import RunSettings
from tests.training.test_run import SETTINGS, begun
from tests.training.tiny import talk

BROAD = replace(SETTINGS, anchors=32, batch_tokens=1024, steps=2, eval_every=0)
SHORT, LONG = [talk(4, 60, seed=seed) for seed in range(16)], talk(20, 980, seed=99)


def needed(folder: Path, corpus: Corpus, settings: RunSettings = BROAD) -> int:
    return begun(folder, settings, corpus).needed


def test_one_long_conversation_hides_no_batch_of_short_ones(tmp_path: Path) -> None:
    """Of 16 short ones a batch has 512 blocks, of the long one 32."""
    corpus = Corpus([*SHORT, LONG], [])
    run = begun(tmp_path / "run", BROAD, corpus)
    trainer = run.begin()
    taken = []
    for _ in range(2):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        trainer.step()
        taken.append(mx.get_peak_memory() - before)
    assert max(taken) < run.needed < 2 * max(taken)
    assert run.needed >= needed(tmp_path, Corpus(SHORT, []))
    assert run.needed >= needed(tmp_path, Corpus([LONG], []))


def test_files_that_a_container_may_drop_take_no_memory(tmp_path: Path) -> None:
    assert _group_limits(tmp_path) == []
    for name, text in (("max", "1000"), ("current", "900"), ("stat", "active_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert _group_limits(tmp_path) == [400]
    (tmp_path / "memory.stat").write_text("anon 150\ninactive_file 450\nactive_file 300\n")
    assert _group_limits(tmp_path) == [850]
    (tmp_path / "memory.max").write_text("max\n")
    assert _group_limits(tmp_path) == []


def test_codebooks_of_a_dflash_2_are_counted(tmp_path: Path) -> None:
    corpus = Corpus(SHORT, [])
    small, large = (
        needed(tmp_path, corpus, replace(BROAD, dflash2=True, selector_rank=rank))
        for rank in (8, 264)
    )
    assert large - small > 2 * 320 * 256 * 4 * 6
