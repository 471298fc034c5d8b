"""Whether there is room for a pair is known, and said, before anything large is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import pairs as pairs_module
from dflash_mlx.hub import room as module
from dflash_mlx.hub.fit import GIB, WORKING, CacheShape, Machine, kv_bytes, prefill_bytes
from dflash_mlx.hub.pairs import resolve_pair
from dflash_mlx.hub.registry import KnownPair
from dflash_mlx.hub.room import Room, room_for
from dflash_mlx.hub.store import in_words
from tests.convert.tiny_models import tensors
from tests.hub.fake_hub import FakeHub, point_client_at, serve
from tests.hub.test_resolve import DRAFTER, model_files
from tests.tiny_folders import write_tiny_pair

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "quantization": {"bits": 4},
}
BIG, SMALL = Machine(64 * GIB, metal=True), Machine(6 * GIB, metal=False)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with org/target and org/drafter."""
    with serve() as running:
        point_client_at(running, tmp_path / "cache", monkeypatch)
        running.files = {
            "org/target": model_files(CONFIG),
            "org/drafter": model_files({**CONFIG, **DRAFTER}),
        }
        yield running


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the hub says that weights take: sizes that no test could hold."""
    sizes = {"org/target": 40 * GIB, "org/drafter": 2 * GIB}
    preview = module.preview
    monkeypatch.setattr(module, "preview", lambda name: (preview(name)[0], sizes[name]))
    return sizes


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "this_machine", lambda: machine)


def test_a_pair_takes_its_weights_its_caches_and_a_chunk(tmp_path: Path) -> None:
    folders = write_tiny_pair(tmp_path)
    room = room_for(folders.target, folders.drafter, context=100, machine=BIG)
    assert room is not None
    sizes = [
        sum(array.size for array in tensors(folder).values())
        for folder in (folders.target, folders.drafter)
    ]
    assert (room.target, room.drafter) == (2 * sizes[0], 2 * sizes[1])
    # Two layers of one head of 16, and the drafter's one: keys and values of 2 bytes.
    assert room.caches == 100 * (2 * 2 * 16 * 2 + 2 * 1 * 16 * 2)
    assert room.total == room.target + room.drafter + room.caches + room.prefill
    assert room.context == 100
    assert not room.fetched
    assert "100 tokens of context" in room.line


def test_a_context_beyond_the_models_own_takes_no_more(tmp_path: Path) -> None:
    folders = write_tiny_pair(tmp_path, context=1024)
    room = room_for(folders.target, None, context=10**6, machine=BIG)
    assert room is not None
    assert (room.context, room.drafter) == (1024, 0)


def test_keys_and_values_in_few_bits_have_a_scale_and_a_bias_for_each_64() -> None:
    shape = CacheShape(layers=2, heads=1, head_dim=64)
    assert kv_bytes(shape, 2, None) == 2 * 2 * 64 * 2
    assert kv_bytes(shape, 2, 8) == 2 * 2 * (64 + 4)
    assert kv_bytes(shape, 4, 4) == 2 * 2 * (32 + 8)


def test_a_chunk_of_prefill_grows_with_the_context_where_attention_is_not_fused() -> None:
    wide = {**CONFIG, "num_attention_heads": 32, "head_dim": 256}
    narrow = {**wide, "head_dim": 128}
    assert prefill_bytes(narrow, 100_000, BIG) == WORKING
    assert prefill_bytes(wide, 100_000, BIG) > 512 * 100_000 * 32 * 4
    assert prefill_bytes(narrow, 100_000, SMALL) > 512 * 100_000 * 32 * 4


def test_what_does_not_fit_is_refused_before_it_is_fetched(
    hub: FakeHub, weights: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(SMALL, monkeypatch)
    with pytest.raises(DFlashError, match=r"org/target does not fit in this machine \(memory: "):
        resolve_pair("org/target", None)
    assert hub.fetched() == {"config.json"}


def test_what_fits_is_fetched(
    hub: FakeHub, weights: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(BIG, monkeypatch)
    names = resolve_pair("org/target", "org/drafter")
    assert "model.safetensors" in hub.fetched()
    assert names.memory is not None
    assert names.memory.startswith(f"memory: target {in_words(40 * GIB)} + drafter")


def test_a_long_context_may_be_what_does_not_fit(
    hub: FakeHub, weights: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 GiB two are for models, and of those a half is left for keys and values."""
    on(SMALL, monkeypatch)
    weights["org/target"] = GIB // 2
    hub.files["org/target"] = model_files({**CONFIG, "num_hidden_layers": 1000})
    with pytest.raises(DFlashError, match="8,000 tokens of context"):
        resolve_pair("org/target", None, context=8000)
    assert resolve_pair("org/target", None, context=1000).context == 1000


def test_a_drafter_that_was_not_asked_for_is_left_out_where_there_is_no_room(
    hub: FakeHub, weights: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(Machine(48 * GIB, metal=True), monkeypatch)
    weights |= {"org/target": 30 * GIB, "org/drafter": 9 * GIB}
    pair = KnownPair("target", "org/target", "org/drafter", 1, 1, CacheShape(1, 1, 1))
    monkeypatch.setattr(module, "known_pair", lambda name: pair)
    monkeypatch.setattr(pairs_module, "known_pair", lambda name: pair)
    with pytest.raises(DFlashError, match="does not fit"):  # chosen, it must draft
        resolve_pair("org/target", "org/drafter")
    names = resolve_pair("org/target")
    assert names.draft_folder is None
    assert "no room for it" in str(names.note)


def test_what_is_here_is_tried_with_a_word_of_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(Machine(GIB, metal=True), monkeypatch)
    names = resolve_pair(write_tiny_pair(tmp_path).target, None)
    assert "too much: models may take" in str(names.memory)


@pytest.mark.parametrize("name", [None, "smollm2-135m", "nobody/nothing", "./missing"])
def test_where_nothing_can_be_told_nothing_is_said(name: str | None, hub: FakeHub) -> None:
    assert room_for(name, "auto", machine=SMALL) is None


def test_a_sum_adds_up() -> None:
    room = Room(BIG, 4096, 5 * GIB, 0, GIB, GIB, fetched=True)
    assert room.total == 7 * GIB
    assert room.fits
    assert "drafter" not in room.line
    assert json.dumps(room.line)
