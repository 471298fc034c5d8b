"""`dflash-mlx convert` from outside: places, and what a person reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.commands.convert import run
from dflash_mlx.commands.convert_arguments import ConvertArguments
from dflash_mlx.errors import DFlashError, UsageError
from tests.conftest import ROOT, RunCli
from tests.convert.tiny_models import (
    FILES,
    config_of,
    convert,
    names,
    tensors,
)


def test_the_table_tells_what_was_done(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(source, tmp_path / "ours", quantize=True, keep=["embed_tokens"])
    out, progress = capsys.readouterr()
    assert progress == "converting ...\n"
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    sizes = [
        sum(a.nbytes for a in tensors(folder).values()) for folder in (source, tmp_path / "ours")
    ]
    weights = sum(array.size for array in tensors(source).values())
    assert lines["model"] == "llama of 2 layers"
    assert lines["tensors"] == "20 -> 48"
    assert lines["size"] == " -> ".join(f"{size / 1e3:,.1f} kB" for size in sizes)
    assert lines["per"] == f"weight  {8 * sizes[1] / weights:.2f} bits"
    assert lines["quantized"] == "14 layers to 4 bits in groups of 64 (affine)"
    assert lines["kept"] == "1 layer (--keep embed_tokens): model.embed_tokens"
    assert lines["sample"].startswith("'The three primary colours are")
    assert lines["written"] == str(tmp_path / "ours")


def test_without_a_place_the_name_tells_the_bits(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for flags in ({}, {"quantize": True}, {"q_bits": 8}, {"q_mode": "mxfp4"}, {"dtype": "float32"}):
        run(ConvertArguments(hf_path=str(source), **flags), prepare(exact=True))
    run(ConvertArguments(source=str(source), recipe="mixed_4_6"), prepare(exact=True))
    assert names(tmp_path) == {
        "place",
        "source-mlx-16bit",
        "source-mlx-4bit",
        "source-mlx-8bit",
        "source-mlx-mxfp4",
        "source-mlx-32bit",
        "source-mlx-mixed_4_6",
    }
    assert names(tmp_path / "source-mlx-4bit") == FILES


def test_a_dry_run_writes_nothing_and_reads_no_weights(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(source, tmp_path / "real", q_bits=3)
    real = capsys.readouterr().out.splitlines()
    # Only headers are read: with the data gone dark, the same is told.
    file = source / "model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    file.write_bytes(raw[:start] + b"\xff" * (len(raw) - start))
    for output in (tmp_path / "ours", tmp_path / "real"):
        convert(source, output, q_bits=3, dry_run=True)
        dry = capsys.readouterr().out.splitlines()
        assert dry[:5] == real[:5]
        assert dry[-1].startswith("dry run     nothing was written")
    assert names(tmp_path) == {"place", "real"}


def test_what_is_there_is_kept_unless_forced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with pytest.raises(DFlashError, match="exists already: choose another -o, or --force"):
        convert(source, tmp_path / "ours")
    convert(source, tmp_path / "ours", force=True)
    (tmp_path / "ours" / "mine").write_text("of the old model")
    convert(source, tmp_path / "ours", force=True)
    assert names(tmp_path / "ours") == FILES


def a_file(place: Path) -> None:
    place.write_text("dear")


def a_folder_of_other_things(place: Path) -> None:
    place.mkdir()
    (place / "thesis").write_text("dear")


@pytest.mark.parametrize("make", [a_file, a_folder_of_other_things])
def test_nothing_but_a_model_is_replaced_even_by_force(
    make: Any, source: Path, tmp_path: Path
) -> None:
    make(tmp_path / "ours")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="is no model folder, and --force replaces nothing else"):
        convert(source, tmp_path / "ours", force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_to_a_model_stays_and_what_it_leads_to_is_replaced(
    source: Path, tmp_path: Path
) -> None:
    real = convert(source, tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    convert(source, tmp_path / "link", quantize=True, force=True)
    assert "quantization" in config_of(real)
    assert names(tmp_path) == {"place", "real", "link"}


def test_the_source_is_never_replaced(source: Path) -> None:
    for output in (source, source.parent):
        with pytest.raises(UsageError, match="holds what is to be converted"):
            convert(source, output, force=True)
    assert names(source) == FILES


def test_a_folder_of_links_becomes_files(source: Path, tmp_path: Path) -> None:
    """As the hub's cache: every file of a snapshot is a link to a blob."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in source.iterdir():
        (snapshot / file.name).symlink_to(file)
    (snapshot / "evil.py").symlink_to(source / "config.json")
    convert(snapshot, tmp_path / "ours", quantize=True)
    assert names(tmp_path / "ours") == FILES
    assert not any(path.is_symlink() for path in (tmp_path / "ours").iterdir())


def test_what_is_not_here_is_not_fetched_offline(tmp_path: Path, run_cli: RunCli) -> None:
    done = run_cli(
        "convert", "nobody/nothing", "-q", home=True, env={"HF_HUB_OFFLINE": "1", "HF_HOME": None}
    )
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE forbids to fetch it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "Say what to convert: a folder, a hub name, or a .gguf file"),
        ({"source": "a", "hf_path": "b"}, "SOURCE and --hf-path are one thing: give it once"),
    ],
)
def test_one_source_is_needed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(ConvertArguments(**arguments), prepare(exact=True))


def test_the_page_names_every_flag() -> None:
    from typer.main import get_command

    from dflash_mlx.cli import app

    page = (ROOT / "docs" / "convert.md").read_text()
    parameters = get_command(app).commands["convert"].params  # type: ignore[attr-defined]
    flags = {flag for parameter in parameters for flag in parameter.opts if flag[0] == "-"}
    assert len(flags) >= 20
    assert {flag for flag in flags if f"`{flag}" not in page} == {"--help", "-h"} & flags


def test_a_mode_that_mlx_lacks_is_told_by_the_command_line(run_cli: RunCli) -> None:
    done = run_cli("convert", "a", "--q-mode", "int4")
    assert (done.returncode, "Invalid value for '--q-mode'" in done.stderr) == (2, True)


class FakeApi:
    """Notes what the hub is asked for."""

    calls: list[tuple[Any, ...]]

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create", name, private, exist_ok))

    def upload_folder(self, *, folder_path: str, repo_id: str) -> None:
        self.calls.append(("upload", repo_id, names(Path(folder_path))))


@pytest.mark.parametrize("private", [False, True])
def test_an_upload_says_whether_the_repository_is_public(
    private: bool,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(FakeApi, "calls", [], raising=False)
    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    convert(source, tmp_path / "ours", upload_repo="me/model", private=private)
    assert FakeApi.calls == [
        ("create", "me/model", private, True),
        ("upload", "me/model", FILES | {"README.md"}),
    ]
    kind = "private" if private else "public"
    assert f"uploading to the {kind} repository me/model" in capsys.readouterr().err


def test_a_failed_upload_keeps_the_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no token")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(DFlashError, match=r"is whole, but the upload .*no token.*hf auth login"):
        convert(source, tmp_path / "ours", upload_repo="me/model")
    assert names(tmp_path / "ours") == FILES | {"README.md"}
