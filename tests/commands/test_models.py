"""`dflash-mlx models`: what it shows, fetches, and removes, and what it asks before it does."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from dflash_mlx import cli
from dflash_mlx.commands import models as command
from dflash_mlx.hub.fit import GIB, Machine
from tests.conftest import ROOT, RunCli
from tests.hub.fake_hub import FakeHub, point_client_at, serve
from tests.tiny_folders import write_tiny_pair

TARGET = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
DRAFTER = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}}
MODEL, DRAFT = "mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"


def model_files(config: Mapping[str, object], nbytes: int = 100) -> dict[str, bytes]:
    header = {"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}
    text = json.dumps(header).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(nbytes)
    return {"config.json": json.dumps(config).encode(), "model.safetensors": weights}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with both halves of a known pair; a home without any; a Mac of 16 GiB."""
    with serve() as hub:
        hub.files[MODEL] = model_files(TARGET)
        hub.files[DRAFT] = model_files(DRAFTER)
        point_client_at(hub, tmp_path / "hub", monkeypatch)
        monkeypatch.setattr(Path, "home", lambda: tmp_path)
        monkeypatch.setattr(command, "this_machine", lambda: Machine(16 * GIB, metal=True))
        yield hub


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


class Said:
    """What `dflash-mlx models ARGUMENTS` prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run the command and return all it printed, errors included."""
        assert cli.run(["models", *arguments]) == code
        out, err = self.capsys.readouterr()
        assert err.count("error:") == (code != 0)
        return out + err


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A person at the terminal who types `text`."""
    terminal = io.StringIO(text)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def line_of(name: str, text: str) -> str:
    """The one line that begins with a name."""
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name} "))
    return " ".join(line.split())


# list


def test_the_list_shows_targets_with_their_drafters_sizes_ages_and_places(said: Said) -> None:
    said("pull", "Qwen3-8B")
    shown = said()
    assert shown == said("list")
    here, _, known = shown.partition("Known pairs")
    lines = [" ".join(line.split()) for line in here.splitlines()]
    at = lines.index(f"{MODEL} 0 MB used today ~/hub/models--mlx-community--Qwen3-8B-4bit")
    assert lines[at + 1] == f"+ {DRAFT} 0 MB used today ~/hub/models--z-lab--Qwen3-8B-DFlash-b16"
    assert "Qwen3-8B 6.6 GB room for" in " ".join(known.split())


def test_a_missing_drafter_comes_with_the_command_that_gets_it(said: Said, hub: FakeHub) -> None:
    said("pull", "Qwen3-8B")
    said("rm", DRAFT, "--yes")
    assert f"+ {DRAFT} not here: `dflash-mlx models pull {MODEL}`" in " ".join(said().split())


def test_a_target_without_a_known_drafter_and_a_drafter_alone_are_listed(
    said: Said, hub: FakeHub
) -> None:
    hub.files["org/other"] = model_files(TARGET)
    said("pull", "org/other")
    shown = " ".join(said().split())
    assert "org/other 0 MB used today ~/hub/models--org--other + no known drafter" in shown
    assert "its target: `dflash-mlx models pull smollm2-135m`" in shown


def test_known_pairs_are_sorted_by_what_fits_this_machine(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, _, large = said().partition("Known pairs")[2].partition("Too large")
    assert "11.5 GB" in fits
    assert "Qwen3-8B " in fits
    assert "gpt-oss-120b" in large
    monkeypatch.setattr(command, "this_machine", lambda: Machine(GIB, metal=True))
    assert "  none\n\nToo large" in said()


# pull


def test_a_known_name_brings_both_halves_and_says_how_to_use_them(
    said: Said, hub: FakeHub, tmp_path: Path
) -> None:
    shown = said("pull", "qwen3-8b")
    places = {name: f"models--{name.replace('/', '--')}" for name in (MODEL, DRAFT)}
    for name, place in places.items():
        assert f"{name} is at {tmp_path / 'hub' / place}" in shown
        assert f"fetching {name} (0 MB)" in shown
    assert f"Talk with it: dflash-mlx chat --model {MODEL}\n" in shown


def test_any_quantization_can_be_named_by_its_repository(said: Said, hub: FakeHub) -> None:
    hub.files["someone/Qwen3-8B-6bit"] = model_files(TARGET)
    shown = said("pull", "someone/Qwen3-8B-6bit")
    assert "someone/Qwen3-8B-6bit is at" in shown
    assert f"{DRAFT} is at" in shown


def test_what_is_here_is_not_asked_for_again(said: Said, hub: FakeHub) -> None:
    said("pull", "Qwen3-8B")
    hub.requests.clear()
    assert "fetching" not in said("pull", "Qwen3-8B")
    assert hub.requests == []


def test_only_the_missing_half_is_fetched(said: Said, hub: FakeHub) -> None:
    said("pull", "Qwen3-8B")
    said("rm", DRAFT, "--yes")
    hub.requests.clear()
    said("pull", "Qwen3-8B")
    assert hub.requests
    assert [request for request in hub.requests if DRAFT not in request] == []


def test_both_halves_must_fit_on_the_disk_before_either_is_fetched(
    said: Said, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [sum(map(len, hub.files[name].values())) for name in (MODEL, DRAFT)]
    asked = []
    monkeypatch.setattr(command, "check_space", lambda folder, needed: asked.append(needed))
    said("pull", "Qwen3-8B")
    assert asked == [sum(sizes)]


def test_a_disk_that_is_too_small_is_one_line_and_nothing_is_fetched(
    said: Said, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "missing_bytes", lambda name: 10**18)
    assert "free some space" in said("pull", "Qwen3-8B", code=1)
    assert hub.fetched() == set()


def test_a_pair_too_large_for_the_memory_is_told_before_it_comes(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "this_machine", lambda: Machine(4 * GIB, metal=True))
    assert "note: Qwen3-8B is too large for this machine's memory" in said("pull", "Qwen3-8B")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen9-8B", "Qwen9-8B is not a known pair: `dflash-mlx models` lists them"),
        ("Qwen3-8B-8bit", "is not a known pair"),
        (DRAFT, f"{DRAFT} is the drafter of Qwen3-8B: pull that"),
    ],
)
def test_a_name_that_cannot_be_pulled_is_a_usage_error(
    said: Said, hub: FakeHub, name: str, words: str
) -> None:
    assert words in said("pull", name, code=2)
    assert hub.requests == []


def test_a_model_that_the_hub_does_not_have_is_one_line(said: Said) -> None:
    assert "the hub has no model of that name" in said("pull", "org/none", code=1)


def test_offline_what_is_here_is_enough_and_the_rest_is_told(
    said: Said, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("pull", "Qwen3-8B")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert f"{MODEL} is at" in said("pull", "Qwen3-8B")
    assert "HF_HUB_OFFLINE forbids" in said("pull", "Qwen3-4B", code=1)


# rm


@pytest.mark.parametrize("typed", ["y\n", "YES\n", " yes \n"])
def test_after_a_yes_the_model_goes_and_its_bytes_are_told(
    said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str
) -> None:
    said("pull", "Qwen3-8B")
    answer(monkeypatch, typed)
    shown = said("rm", MODEL)
    place = tmp_path / "hub" / "models--mlx-community--Qwen3-8B-4bit"
    assert f"Remove {MODEL} (0 MB) from {place}? [y/N]" in shown
    assert not place.exists()
    size = sum(map(len, model_files(TARGET).values()))
    freed = int(shown.split("Removed ")[1].split(": ")[1].split(" bytes freed")[0].replace(",", ""))
    assert size <= freed < size + 1000  # the client of the hub keeps notes beside the files
    assert f"Its drafter is still here: `dflash-mlx models rm {DRAFT}` removes it." in shown
    assert DRAFT in said()


@pytest.mark.parametrize("typed", ["n\n", "\n", "", "yesterday\n"])
def test_anything_but_yes_removes_nothing(
    said: Said, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    said("pull", "Qwen3-8B")
    answer(monkeypatch, typed)
    assert "Nothing was removed." in said("rm", MODEL)
    assert MODEL in said()


def test_where_nobody_can_answer_yes_must_be_given(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("pull", "Qwen3-8B")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "give --yes" in said("rm", MODEL, code=2)
    assert MODEL in said()


@pytest.mark.parametrize("name", ["org/none", "Qwen3-8B", "hub", "..", "/"])
def test_only_the_full_name_of_a_listed_model_is_removed(
    said: Said, tmp_path: Path, name: str
) -> None:
    said("pull", "Qwen3-8B")
    before = sorted(tmp_path.rglob("*"))
    assert "is not on this machine" in said("rm", name, "--yes", code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_conversions_of_another_cache_are_listed_and_removed_there(
    said: Said, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere" / "mine"
    folder.mkdir(parents=True)
    for name, content in model_files(TARGET).items():
        (folder / name).write_bytes(content)
    assert "mine" not in said("list")
    assert "mine" in said("list", "--cache-dir", str(folder.parent))
    said("rm", "mine", "--yes", "--cache-dir", str(folder.parent))
    assert not folder.exists()


# info


def test_info_of_a_known_pair_that_is_not_here_is_estimated(said: Said, hub: FakeHub) -> None:
    shown = said("info", "Qwen3-8B")
    assert line_of("target", shown) == f"target {MODEL} about 4.6 GB not here"
    assert line_of("drafter", shown) == f"drafter {DRAFT} about 2.0 GB not here"
    assert line_of("trained on", shown) == "trained on replies without reasoning"
    assert "about 8.4 GB with 4,096 tokens of context" in line_of("memory", shown)
    assert hub.requests == []


def test_info_of_a_model_that_is_here_is_read_from_its_files(said: Said) -> None:
    said("pull", "Qwen3-8B")
    shown = said("info", MODEL)
    assert line_of("target", shown).startswith(f"target {MODEL} 0 MB used today ~/hub/")
    assert line_of("drafter", shown).startswith(f"drafter {DRAFT} 0 MB used today ~/hub/")
    assert line_of("memory", shown).endswith("room for its whole context of 40,960 tokens")
    for name in (DRAFT, "Qwen3-8B"):
        assert said("info", name).splitlines()[1:] == shown.splitlines()[1:]


def test_info_says_what_is_too_much_for_this_machine(said: Said) -> None:
    memory = line_of("memory", said("info", "gpt-oss-120b"))
    assert memory.endswith("too much, models may take 11.5 GB here")


def test_info_of_a_stranger_is_an_error(said: Said) -> None:
    assert "org/none is not on this machine" in said("info", "org/none", code=1)


# As a program


def test_help_of_models_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom dflash_mlx.cli import run\nrun(['models', '--help'])\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = {"mlx", "mlx_lm", "transformers", "numpy", "rich", "huggingface_hub"}
    assert not heavy & set(done.stderr.split())
    for name in ("list", "pull", "rm", "info"):
        assert f"  {name} " in done.stdout


def test_a_user_sets_the_hub_and_its_cache_by_the_hubs_own_variables(
    run_cli: RunCli, hub: FakeHub, tmp_path: Path
) -> None:
    env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "my-hub"), "HF_TOKEN": None}
    pulled = run_cli("models", "pull", "Qwen3-8B", env=env, home=True)
    assert (pulled.returncode, pulled.stdout.count("is at")) == (0, 2)
    listed = run_cli("models", env={**env, "HF_HUB_OFFLINE": "1"}, home=True)
    assert "~/my-hub/models--mlx-community--Qwen3-8B-4bit" in listed.stdout
    assert (listed.returncode, listed.stderr) == (0, "")


# What the other commands make of it


def generated(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[dict[str, Any], str]:
    """The JSON of `generate`, and what it says besides."""
    flags = ["-p", "hi", "-m", "5", "--temp", "0", "--json"]
    assert cli.run(["generate", *flags, *arguments]) == code
    out, err = capsys.readouterr()
    return json.loads(out or "{}"), err


@pytest.fixture
def tiny_hub(hub: FakeHub, tmp_path: Path) -> FakeHub:
    """The hub, with models that run under the names of a known pair."""
    pair = write_tiny_pair(tmp_path / "tiny")
    for name, folder in ((MODEL, pair.target), (DRAFT, pair.drafter), ("org/x", pair.target)):
        hub.files[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return hub


def test_a_quantized_model_is_drafted_for_by_its_known_drafter(
    capsys: pytest.CaptureFixture[str], tiny_hub: FakeHub
) -> None:
    drafted, said = generated(capsys, "--model", MODEL)
    assert f"fetching {DRAFT} (" in said
    assert drafted["configuration"]["draft_model"] == DRAFT
    assert drafted["rounds"] > 0
    tiny_hub.requests.clear()
    plain, said = generated(capsys, "--model", MODEL, "--no-draft")
    assert plain["token_ids"] == drafted["token_ids"]
    assert "fetching" not in said
    assert tiny_hub.requests == []


def test_without_a_known_drafter_plain_decoding_is_told_at_once_and_in_the_statistics(
    capsys: pytest.CaptureFixture[str], tiny_hub: FakeHub
) -> None:
    plain, said = generated(capsys, "--model", "org/x")
    note = "decoding without a drafter: no drafter is known for org/x"
    assert f"note: {note}" in said
    assert plain["configuration"]["draft_model"] is None
    assert any(each.startswith(note) for each in plain["configuration"]["notes"])


def test_a_drafter_that_was_asked_for_is_never_left_out(
    capsys: pytest.CaptureFixture[str], tiny_hub: FakeHub
) -> None:
    _, said = generated(capsys, "--model", MODEL, "--draft-model", "org/none", code=1)
    assert "error: " in said
    assert "org/none" in said
