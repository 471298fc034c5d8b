"""Names of models: what they stand for, and a sentence for each that stands for nothing."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import resolve as module
from dflash_mlx.hub.embedded import drafter_folder
from dflash_mlx.hub.pairs import resolve_pair
from dflash_mlx.hub.resolve import Resolved, resolve
from tests.hub.fake_hub import COMMIT, FakeHub, point_client_at, serve

TARGET = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
DRAFTER = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}}


def safetensors(**tensors: bytes) -> bytes:
    """The bytes of a file of U8 tensors."""
    header, data = {}, b""
    for name, content in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def model_files(config: object = TARGET) -> dict[str, bytes]:
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": safetensors(norm=b"12345678"),
        "tokenizer.json": b"{}",
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the embedded target is said to lie."""
    monkeypatch.setattr(module, "ensure_target", lambda progress, root=None: tmp_path / "embedded")
    return tmp_path / "embedded"


def test_no_name_and_its_own_name_are_the_embedded_target(embedded: Path) -> None:
    for name in (None, "smollm2-135m"):
        assert resolve(name) == Resolved(embedded, "smollm2-135m", "embedded")


def test_the_embedded_pair_brings_its_drafter_unless_none_is_wanted(embedded: Path) -> None:
    pair = resolve_pair(None)
    assert (pair.model, pair.model_folder) == ("smollm2-135m", embedded)
    assert (pair.draft_model, pair.draft_folder) == ("smollm2-135m-dflash", drafter_folder())
    assert resolve_pair(None, None).draft_folder is None


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = write(tmp_path / "my-model", model_files())
    assert resolve(folder) == Resolved(folder, "my-model", "local")
    assert resolve(f"{folder}/") == Resolved(folder, "my-model", "local")


def test_a_model_without_a_known_drafter_decodes_plainly(tmp_path: Path) -> None:
    folder = write(tmp_path / "my-model", model_files())
    assert resolve_pair(folder).draft_folder is None
    drafter = write(tmp_path / "my-drafter", model_files(DRAFTER))
    assert resolve_pair(folder, str(drafter)).draft_folder == drafter


def test_a_drafter_that_was_asked_for_and_is_not_there_is_an_error(embedded: Path) -> None:
    with pytest.raises(DFlashError, match=r"no model folder \./none"):
        resolve_pair(None, "./none")


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])


def add_index(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def rewrite(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "a config that is no JSON": (rewrite("config.json", b"{"), "config.json is damaged"),
    "a config that is a list": (rewrite("config.json", b"[]"), "does not hold a JSON object"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    "empty weights": (rewrite("model.safetensors", b""), "damaged or cut short"),
    "weights cut short": (cut, "cut short at"),
    "weights that are none": (rewrite("model.safetensors", b"hello" * 99), "damaged or cut short"),
    "a missing shard": (add_index, r"lacks model-2\.safetensors"),
    "a pointer of Git LFS": (
        rewrite("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "a drafter": (
        rewrite("config.json", json.dumps(DRAFTER).encode()),
        "a DFlash drafter, not a model that can talk: give it as --draft-model",
    ),
    "a drafter of vLLM's packaging": (
        rewrite("config.json", b'{"speculators_model_type": "dflash"}'),
        "a DFlash drafter",
    ),
    "a drafter of DeepSpec's packaging": (
        rewrite("config.json", b'{"architectures": ["Qwen3DSparkModel"]}'),
        "a DFlash drafter",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_no_model_is_refused(case: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "my-model", model_files())
    damage, sentence = BROKEN[case]
    damage(folder)
    with pytest.raises(DFlashError, match=sentence):
        resolve(folder)


def test_a_language_model_is_no_drafter(tmp_path: Path) -> None:
    folder = write(tmp_path / "my-model", model_files())
    with pytest.raises(DFlashError, match=r"language model \(llama\).*give it as --model"):
        resolve(folder, "drafter")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere", "no model folder nowhere: give a folder that exists, or .* org/name"),
        ("/no/such/folder", "no model folder /no/such/folder"),
        ("a/b/c", "no model folder a/b/c"),
        ("~/none", "no model folder ~/none"),
        ("", r"no config\.json|no model folder"),
        ("model.gguf", "GGUF file: make an MLX folder of it first, with `dflash-mlx convert`"),
        ("org/model.GGUF", "GGUF file"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DFlashError, match=sentence):
        resolve(name)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(DFlashError, match=r"is a file: give the folder"):
        resolve(tmp_path / "weights.bin")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine, with a cache of its own."""
    with serve() as hub:
        point_client_at(hub, tmp_path / "hub", monkeypatch)
        yield hub


def test_the_hub_gives_weights_and_configs_but_no_code_and_no_pickle(hub: FakeHub) -> None:
    useless = {"modeling.py": b"x", "pytorch_model.bin": b"x", "original/model.safetensors": b"x"}
    hub.files["org/name"] = {**model_files(), **useless, "chat_template.jinja": b"hi"}
    told: list[tuple[str, int, int]] = []
    found = resolve("org/name", progress=lambda *step: told.append(step))
    assert (found.name, found.kind) == ("org/name", "hub")
    assert {path.name for path in found.folder.iterdir()} == {*model_files(), "chat_template.jinja"}
    assert hub.fetched() == {*model_files(), "chat_template.jinja"}
    size = sum(map(len, model_files().values())) + 2
    assert told[-1] == ("fetching org/name (0 MB)", size, size)


def test_what_is_cached_never_touches_the_network(hub: FakeHub) -> None:
    hub.files["org/name"] = model_files()
    first = resolve("org/name")
    hub.requests.clear()
    assert resolve("org/name") == first
    assert hub.requests == []


def test_an_interrupted_download_goes_on(hub: FakeHub) -> None:
    shards = {f"model-{i}.safetensors": safetensors(a=bytes([i]) * 9000) for i in (1, 2)}
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    hub.files["org/name"] = {
        "config.json": json.dumps(TARGET).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        **shards,
    }
    hub.broken.add("model-2.safetensors")
    with pytest.raises(DFlashError, match="status 500"):
        resolve("org/name")
    hub.broken.clear()
    hub.requests.clear()
    folder = resolve("org/name").folder
    assert (folder / "model-2.safetensors").read_bytes() == shards["model-2.safetensors"]
    assert "model-1.safetensors" not in hub.fetched()


def test_what_mlx_lm_has_fetched_is_whole(hub: FakeHub, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = write(repository / "snapshots" / COMMIT, model_files())
    write(repository / "refs", {"main": COMMIT.encode()})
    assert resolve("org/name").folder == snapshot
    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (404, "RepoNotFound", "no folder org/name, and the hub has no model of that name, or it"),
        (401, "RepoNotFound", "hf auth login"),
        (403, "GatedRepo", "org/name is gated: accept its licence"),
        (503, "", r"hub refused org/name \(status 503\)"),
    ],
)
def test_a_refusal_of_the_hub_is_one_sentence(
    status: int, code: str, sentence: str, hub: FakeHub
) -> None:
    hub.refusals["org/name"] = (status, code)
    with pytest.raises(DFlashError, match=sentence) as error:
        resolve("org/name")
    assert len(str(error.value).splitlines()) == 1


def test_no_network_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DFlashError, match=r"hub cannot be reached \(.+\): go online"):
        resolve("org/name")


def test_offline_by_choice_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DFlashError, match="HF_HUB_OFFLINE forbids to fetch it: unset it"):
        resolve("org/name")
    assert hub.requests == []


def test_too_little_disk_is_told_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["org/name"] = model_files()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(DFlashError, match="the disk has 0 MB left: free some space"):
        resolve("org/name")
    assert hub.fetched() == set()


def test_a_drafter_of_the_hub_is_not_taken_for_a_model(hub: FakeHub) -> None:
    hub.files["org/drafter"] = model_files(DRAFTER)
    with pytest.raises(DFlashError, match="give it as --draft-model"):
        resolve("org/drafter")
    assert resolve("org/drafter", "drafter").kind == "hub"
