"""What is on this machine, and that removing takes exactly what was named."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import inventory
from dflash_mlx.hub.inventory import Held, drafter_name, find, held_models, remove

TALKS = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
DRAFTS = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}}
EMBEDS = {"architectures": ["BertModel"], "model_type": "bert"}
SHIPPED = "smollm2-135m-dflash"


def weights(nbytes: int = 100) -> bytes:
    header = {"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(nbytes)


@dataclass
class Caches:
    """The hub's cache and ours, both empty at first."""

    hub: Path
    made: Path

    def cached(
        self, name: str, config: Mapping[str, object] = TALKS, commit: str = "c" * 40
    ) -> Path:
        """A repository as the hub's client leaves it: blobs, and a snapshot of links to them."""
        place = self.hub / f"models--{name.replace('/', '--')}"
        snapshot = place / "snapshots" / commit
        for folder in (place / "blobs", place / "refs", snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        (place / "refs" / "main").write_text(commit)
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights()}
        for file, content in files.items():
            blob = place / "blobs" / f"{commit[0]}-{file}"
            blob.write_bytes(content)
            (snapshot / file).symlink_to(f"../../blobs/{blob.name}")
        return place

    def converted(self, name: str, config: Mapping[str, object] = TALKS) -> Path:
        folder = self.made / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(weights())
        return folder

    def models(self) -> list[Held]:
        """All but what ships with the program."""
        found = held_models(self.made, self.hub)
        return [model for model in found if model.origin != "shipped"]

    def names(self) -> list[str]:
        return [model.name for model in self.models()]


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    return Caches(tmp_path / "hub", tmp_path / "made")


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


# What is here


def test_without_caches_only_the_shipped_drafter_is_here(tmp_path: Path) -> None:
    found = held_models(tmp_path / "none", tmp_path / "nowhere")
    assert [(model.name, model.role, model.origin) for model in found] == [
        (SHIPPED, "drafter", "shipped")
    ]


def test_targets_and_drafters_are_found_by_name_in_both_caches(caches: Caches) -> None:
    hub = caches.cached("org/talker")
    caches.cached("z-lab/Qwen3-8B-DFlash-b16", DRAFTS)
    made = caches.converted("my-model-mlx-4bit")
    found = {model.name: model for model in caches.models()}
    assert {name: model.role for name, model in found.items()} == {
        "my-model-mlx-4bit": "target",
        "org/talker": "target",
        "z-lab/Qwen3-8B-DFlash-b16": "drafter",
    }
    assert found["org/talker"].place == hub
    assert found["org/talker"].folder == hub / "snapshots" / ("c" * 40)
    assert found["my-model-mlx-4bit"].place == made


def test_what_neither_talks_nor_drafts_is_of_other_programs(caches: Caches) -> None:
    caches.cached("org/embeddings", EMBEDS)
    caches.cached("org/data", {})
    (caches.hub / "datasets--org--name").mkdir()
    (caches.made / "simulator").mkdir(parents=True)
    caches.converted(".half.partial")
    assert caches.names() == []


def test_the_revision_that_is_loaded_counts(caches: Caches) -> None:
    caches.cached("org/talker", commit="a" * 40)
    caches.cached("org/talker", commit="b" * 40)
    (model,) = caches.models()
    assert model.folder.name == "b" * 40


def test_the_size_is_of_all_files_each_counted_once(caches: Caches) -> None:
    place = caches.cached("org/talker")
    (model,) = caches.models()
    assert model.nbytes == sum(p.stat().st_size for p in files_below(place) if not p.is_symlink())


def test_a_model_was_last_used_when_its_weights_were_read(caches: Caches) -> None:
    place = caches.cached("org/talker")
    os.utime(place / "blobs" / "c-model.safetensors", (86_400.0, 0.0))
    (model,) = caches.models()
    assert model.used == 86_400.0


def test_a_download_that_stopped_is_listed_as_such_if_its_name_is_known(caches: Caches) -> None:
    for name in ("mlx-community/Qwen3-8B-4bit", "org/unknown"):
        place = caches.cached(name)
        for file in files_below(place / "snapshots"):
            file.unlink()
    (model,) = caches.models()
    assert (model.name, model.role, model.whole) == (
        "mlx-community/Qwen3-8B-4bit",
        "target",
        False,
    )


def test_a_cache_that_is_a_link_is_listed(caches: Caches, tmp_path: Path) -> None:
    caches.cached("org/talker")
    (tmp_path / "link").symlink_to(caches.hub)
    assert [m.name for m in held_models(caches.made, tmp_path / "link")] == ["org/talker", SHIPPED]


def test_a_target_knows_the_name_of_its_drafter(caches: Caches) -> None:
    caches.cached("mlx-community/Qwen3-8B-8bit")
    caches.cached("org/talker")
    caches.converted("smollm2-135m")
    assert {model.name: drafter_name(model) for model in caches.models()} == {
        "mlx-community/Qwen3-8B-8bit": "z-lab/Qwen3-8B-DFlash-b16",
        "org/talker": None,
        "smollm2-135m": SHIPPED,
    }


def test_a_name_must_be_whole_to_be_found(caches: Caches) -> None:
    caches.cached("org/talker")
    assert find("org/talker", caches.models()).name == "org/talker"
    for name in ("talker", "org/talk", "ORG/talker", "", "../made"):
        with pytest.raises(DFlashError, match="not on this machine"):
            find(name, caches.models())


# Removing


def test_removing_takes_one_repository_and_tells_its_bytes(caches: Caches) -> None:
    place = caches.cached("org/talker")
    copies = [caches.cached(f"org/copy-{number}") for number in range(8)]  # of the same commit
    before = [files_below(copy) for copy in copies]
    model = find("org/talker", caches.models())
    assert remove(model) == model.nbytes
    assert not place.exists()
    assert [files_below(copy) for copy in copies] == before


def test_removing_a_conversion_leaves_nothing_of_it_and_all_of_its_neighbours(
    caches: Caches,
) -> None:
    folder = caches.converted("mine")
    kept = caches.converted("mine-too")
    model = find("mine", caches.models())
    assert remove(model) == model.nbytes
    assert not folder.exists()
    assert [path.name for path in caches.made.iterdir()] == [kept.name]


def test_a_download_that_stopped_can_be_removed(caches: Caches) -> None:
    place = caches.cached("mlx-community/Qwen3-8B-4bit")
    for file in files_below(place / "snapshots"):
        file.unlink()
    (place / "blobs" / "x.incomplete").write_bytes(bytes(500))
    (place / "snapshots" / ("c" * 40)).rmdir()
    (model,) = caches.models()
    assert remove(model) == model.nbytes >= 500
    assert not place.exists()


def test_what_links_point_to_outside_stays_and_is_not_counted_as_freed(
    caches: Caches, tmp_path: Path
) -> None:
    place = caches.cached("org/talker")
    outside = tmp_path / "disk" / "weights"
    outside.parent.mkdir()
    blob = place / "blobs" / "c-model.safetensors"
    blob.rename(outside)
    blob.symlink_to(outside)
    (model,) = caches.models()
    assert model.whole
    assert remove(model) == model.nbytes - outside.stat().st_size
    assert outside.exists()


def test_files_that_the_client_shares_between_models_are_freed_with_the_last_of_them(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches.cached("org/talker")
    shared = caches.hub / "blobs" / "ab" / "abc"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(bytes(700))
    (model,) = caches.models()

    def client(place: Path) -> None:
        shared.unlink()
        shutil.rmtree(place)

    monkeypatch.setattr(inventory, "_remove_cached", client)
    assert remove(model) == model.nbytes + 700


def test_a_place_that_is_a_link_is_left_to_its_owner(caches: Caches, tmp_path: Path) -> None:
    for place in (caches.cached("org/talker"), caches.converted("mine")):
        elsewhere = tmp_path / "disk" / place.name
        elsewhere.parent.mkdir(exist_ok=True)
        place.rename(elsewhere)
        place.symlink_to(elsewhere)
    for model in caches.models():
        with pytest.raises(DFlashError, match=r"is a link to .*: remove it by hand"):
            remove(model)
    assert len(caches.names()) == 2


def test_what_ships_with_the_program_cannot_be_removed(caches: Caches) -> None:
    shipped = find(SHIPPED, held_models(caches.made, caches.hub))
    with pytest.raises(DFlashError, match="part of dflash-mlx"):
        remove(shipped)
    assert shipped.folder.is_dir()


def test_a_place_that_cannot_be_removed_is_told(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches.cached("org/talker")
    monkeypatch.setattr(inventory, "_remove_cached", lambda place: None)  # as a refusal ends there
    with pytest.raises(DFlashError, match="cannot be removed whole"):
        remove(find("org/talker", caches.models()))
