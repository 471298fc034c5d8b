"""`dflash-mlx convert` from outside: places, faults, and what a person reads."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from dflash_mlx.backend import prepare
from dflash_mlx.commands.convert import run
from dflash_mlx.commands.convert_arguments import ConvertArguments
from dflash_mlx.errors import DFlashError, UsageError
from tests.conftest import ROOT, RunCli
from tests.convert.tiny_gguf import tiny_gguf
from tests.convert.tiny_models import (
    config_of,
    convert,
    names,
    tensors,
    tiny_config,
    tiny_weights,
    write_model,
)

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "place" / "source")


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


def shard(source: Path) -> None:
    """Cut the weights into two files with an index."""
    weights = tensors(source)
    place: dict[str, str] = {}
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        part = {name: weights[name] for name in sorted(weights)[number - 1 :: 2]}
        mx.save_safetensors(str(source / file), part)
        place |= dict.fromkeys(part, file)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))


def missing_shard(source: Path) -> None:
    shard(source)
    (source / "model-00002-of-00002.safetensors").unlink()


def shard_without_a_tensor(source: Path) -> None:
    shard(source)
    file = source / "model-00002-of-00002.safetensors"
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    weights.popitem()
    mx.save_safetensors(str(file), weights)


def zero_bytes(source: Path) -> None:
    (source / "model.safetensors").write_bytes(b"")


def not_finite(source: Path) -> None:
    weights = tiny_weights(tiny_config())
    weights["model.norm.weight"][3] = mx.nan
    mx.save_safetensors(str(source / "model.safetensors"), weights)


def no_tokenizer(source: Path) -> None:
    (source / "tokenizer.json").unlink()


def broken_tokenizer(source: Path) -> None:
    (source / "tokenizer.json").write_text("{")


def hot(source: Path) -> None:
    (source / "generation_config.json").write_text('{"temperature": "hot"}')


def link_to_nowhere(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to("gone")


def damaged_index(source: Path) -> None:
    (source / "model.safetensors.index.json").write_text('{"weight_map": 3}')


def unknown_family(source: Path) -> None:
    (source / "config.json").write_text(json.dumps(config_of(source) | {"model_type": "weird"}))


FAULTS = {
    missing_shard: "lacks model-00002-of-00002.safetensors",
    shard_without_a_tensor: "lacks 1 tensors that its index names",
    zero_bytes: "is damaged or cut short; fetch it again",
    not_finite: r"model\.norm\.weight holds numbers that are not finite",
    no_tokenizer: "The tokenizer in .*/source cannot be loaded",
    broken_tokenizer: "The tokenizer in .*/source cannot be loaded",
    hot: r"generation_config\.json cannot be used: a value of it is no number",
    link_to_nowhere: "lacks model.safetensors, which is a link to nowhere: fetch it again",
    damaged_index: r"index\.json is damaged: it names no weights",
    unknown_family: r"\(Model type weird not supported\): fetch it again, or choose another",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_and_leaves_nothing(
    fault: Any, source: Path, tmp_path: Path
) -> None:
    fault(source)
    with pytest.raises(DFlashError, match=FAULTS[fault]):
        convert(source, tmp_path / "ours", quantize=True)
    assert names(tmp_path) == {"place"}


def test_shards_convert_as_one(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "whole", quantize=True)
    shard(source)
    convert(source, tmp_path / "parts", quantize=True)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(mx.array_equal(whole[name], parts[name]) for name in whole)


def test_too_little_space_is_told_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("dflash_mlx.hub.store.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DFlashError, match="free some space"):
        convert(source, tmp_path / "ours")
    assert names(tmp_path) == {"place"}


def command(source: Path, output: Path) -> list[str]:
    arguments = ["convert", str(source), "-o", str(output), "-q"]
    return [sys.executable, "-m", "dflash_mlx", *arguments]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_file_beyond_the_limit_leaves_nothing(source: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(source, tmp_path / "ours"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 1
    assert "would pass the limit on file sizes: raise it (ulimit -f)" in done.stderr
    assert names(tmp_path) == {"place"}


WORKER = """
import os, random, signal, sys, time
from pathlib import Path
from dflash_mlx.backend import prepare
prepare(exact=True)
from dflash_mlx.commands.convert import _Job, run
from dflash_mlx.commands.convert_arguments import ConvertArguments
def slowly(self, done, total):
    print(done, flush=True)
    time.sleep(0.02)
_Job.writing = slowly
arguments = ConvertArguments(source=sys.argv[1], output=Path(sys.argv[2]), quantize=True)
def convert():
    run(arguments, prepare(exact=True))
"""
"""A conversion of about a second, in a process of its own."""

KILLS = """
moments = random.Random(3)
for _ in range(10):
    progress, told = os.pipe()
    child = os.fork()  # nothing has been computed yet, so MLX has no threads to lose
    if child == 0:
        os.close(progress)
        os.dup2(told, 1)
        convert()
        os._exit(0)
    os.close(told)
    with os.fdopen(progress) as tensors:
        for _ in zip(range(moments.randrange(60)), tensors):  # of 48; then it is tried
            pass
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("found", *sorted(path.name for path in Path(sys.argv[2]).parent.iterdir()), flush=True)
"""


def begin(source: Path, output: Path, then: str) -> subprocess.Popen[str]:
    """Python that knows how to `convert()`, and does `then`."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER + then, str(source), str(output)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_killed_at_any_moment_the_folder_is_whole_or_absent(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "ours"
    said, _ = begin(source, output, KILLS).communicate(timeout=120)
    found = [set(x.split()[1:]) for x in said.splitlines() if x.startswith("found")]
    assert len(found) == 10
    assert all(names <= {"place", "ours", ".ours.partial"} for names in found)
    assert sum(".ours.partial" in names for names in found) > 3
    if output.exists():
        load_model(output)
    convert(source, output, quantize=True, force=True)
    assert names(tmp_path) == {"place", "ours"}
    load_model(output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing_behind(
    number: signal.Signals, source: Path, tmp_path: Path
) -> None:
    process = begin(source, tmp_path / "ours", "convert()")
    assert process.stdout
    process.stdout.readline()  # the first tensor is written
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert names(tmp_path) == {"place"}


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


GGUF = {"Q4_0": (4, 32), "Q5_0": (5, 32), "Q5_1": (5, 32), "Q8_0": (8, 32)}


@pytest.mark.parametrize("kind", GGUF)
def test_a_gguf_keeps_its_own_types(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf(kind)
    convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "ours")
    layer = load_model(tmp_path / "ours")[0].layers[0].mlp.up_proj
    assert (layer.bits, layer.group_size) == GGUF[kind]
    floats = (layer.scales.astype(mx.float32), layer.biases.astype(mx.float32))
    numbers = mx.dequantize(layer.weight, *floats, group_size=32, bits=layer.bits)
    assert mx.array_equal(numbers, mx.array(tiny.stored("blk.0.ffn_up.weight")))
    out = capsys.readouterr().out
    assert f"to {layer.bits} bits in groups of 32 (affine)" in out
    sizes = sum(array.nbytes for array in tensors(tmp_path / "ours").values())
    assert f"-> {sizes / 1e3:,.1f} kB" in out
    weights = load_weights_count(tmp_path / "ours")
    assert f"per weight  {8 * sizes / weights:.2f} bits" in out


def load_weights_count(folder: Path) -> int:
    from mlx_lm.utils import get_total_parameters

    return int(get_total_parameters(load_model(folder)[0]))


def test_a_gguf_is_quantized_anew_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf("F16", tied=False)
    file = tiny.write(tmp_path / "tiny.gguf")
    convert(file, tmp_path / "dry", q_bits=5, keep=["lm_head"], dry_run=True)
    dry = capsys.readouterr().out.splitlines()
    convert(file, tmp_path / "ours", q_bits=5, keep=["lm_head"])
    assert dry[:6] == capsys.readouterr().out.splitlines()[:6]
    written = tensors(tmp_path / "ours")
    exact = mx.array(tiny.stored("blk.1.ffn_up.weight")).astype(mx.float16)
    theirs = mx.quantize(exact, group_size=64, bits=5)
    path = "model.layers.1.mlp.up_proj"
    for part, array in zip(("weight", "scales", "biases"), theirs, strict=True):
        assert mx.array_equal(written[f"{path}.{part}"], array), part
    assert written["lm_head.weight"].dtype == mx.float16
    assert names(tmp_path / "ours") == FILES | {"generation_config.json"}
    assert "quantization" in config_of(tmp_path / "ours")


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.architecture = "mamba"
    with pytest.raises(DFlashError, match="family 'mamba': only these can be imported: "):
        convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "ours")
    assert names(tmp_path) == {"tiny.gguf"}
