"""Peers: a process of another Python that speaks JSON lines. A fake z-lab stands for a real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.backend import prepare
from dflash_mlx.benchmark import peer
from dflash_mlx.benchmark.peer import (
    PeerArm,
    PeerFolders,
    parse_peer,
    peer_folders,
)
from dflash_mlx.benchmark.sample import Asked
from dflash_mlx.drafter import load_drafter
from dflash_mlx.engine.options import Sampling
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import load_pair
from tests.convert.tiny_models import convert
from tests.tiny_folders import write_tiny_pair

ZLAB = """
import os, sys
from types import SimpleNamespace as Made

class Module:
    def __init__(self, name): self.name, self.dtype = name, None
    def set_dtype(self, dtype): self.dtype = str(dtype)
    def parameters(self): return {}

def snapshot_download(name, **_): raise ValueError("no hub here")

def load(folder):
    print("chatter that is no JSON")
    if "broken" in folder: raise RuntimeError("weights are broken")
    return Module(folder), None

def load_draft(folder):
    module = Module(snapshot_download(folder, allow_patterns=[]))
    module.config = Made(block_size=8)
    return module

def stream_generate(target, draft, tokenizer, prompt, max_tokens, **sampling):
    if prompt == [1]:
        import time
        time.sleep(600)
    if prompt == [0]:
        sys.stderr.write("out of memory\\n")
        sys.stderr.flush()
        os._exit(9)
    assert target.dtype == draft.dtype == "mlx.core.float32", (target.dtype, draft.dtype)
    yield Made(tokens=[sum(prompt)])
    yield Made(tokens=[1, 2, 3])
    yield Made(tokens=[round(100 * sampling.get("temperature", 0))])
    yield Made(tokens=[])
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter whose environment has the fake peer, however isolated it is started."""
    packages = tmp_path / "packages"
    (packages / "dflash").mkdir(parents=True)
    (packages / "dflash" / "__init__.py").touch()
    (packages / "dflash" / "model_mlx.py").write_text(ZLAB)
    about = packages / "dflash-0.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dflash\nVersion: 0.9\n")
    start = f"import sys, runpy; sys.path.insert(0, {str(packages)!r}); sys.argv = sys.argv[1:];"
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] || exit 3\nshift\n'
        f"exec {sys.executable} -c \"{start} runpy.run_path(sys.argv[0], run_name='__main__')\""
        ' "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def folders(tmp_path: Path, model: str = "model") -> PeerFolders:
    (tmp_path / "draft").mkdir(exist_ok=True)
    return PeerFolders(tmp_path / model, tmp_path / "draft", "float32", None)


def asked(tokens: list[int], **sampling: Any) -> Asked:
    return Asked("", tokens, Sampling(**sampling), 9, 1)


def test_a_peer_answers_with_its_tokens_rounds_and_times(python: str, tmp_path: Path) -> None:
    arm = PeerArm("dflash", python, folders(tmp_path))
    try:
        sample = arm.answer(asked([4, 5], temperature=0.7, min_p=0.1))
        assert sample.tokens == [9, 1, 2, 3, 70]
        assert (sample.prompt_tokens, sample.generated) == (2, 5)
        assert (sample.accepted, sample.drafted) == ([2, 0], [7, 7])
        assert sample.prefill_seconds > 0
        assert sample.decode_seconds > 0
        assert arm.note == ("dflash is version 0.9; of sampling it takes temperature, top_p, top_k")
        assert arm.samples
    finally:
        arm.close()


def test_a_peer_that_cannot_load_says_why(python: str, tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="peer dflash failed: RuntimeError: weights are broken"):
        PeerArm("dflash", python, folders(tmp_path, "broken"))


def test_a_peer_that_dies_leaves_its_last_words(python: str, tmp_path: Path) -> None:
    arm = PeerArm("dflash", python, folders(tmp_path))
    try:
        with pytest.raises(DFlashError, match="peer dflash ended: out of memory"):
            arm.answer(asked([0]))
    finally:
        arm.close()


def test_a_peer_that_hangs_is_ended_with_one_sentence(python: str, tmp_path: Path) -> None:
    arm = PeerArm("dflash", python, folders(tmp_path))
    arm._timeout = 0.2
    try:
        with pytest.raises(
            DFlashError, match=r"dflash said nothing for 0\.2 seconds and was ended"
        ):
            arm.answer(asked([1]))
        assert arm._process.wait(10) != 0
    finally:
        arm.close()


def test_so_is_one_that_never_gets_ready(tmp_path: Path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    with pytest.raises(DFlashError, match="said nothing for"):
        PeerArm("dflash", str(sleeper), folders(tmp_path), timeout=0.2)


def says(tmp_path: Path, octal: str) -> str:
    """A program that writes these bytes, as printf has them, and hangs."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '{octal}'\nexec sleep 600\n")
    program.chmod(0o755)
    return str(program)


def test_so_is_one_that_hangs_in_the_middle_of_a_line(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="said nothing for"):
        PeerArm("dflash", says(tmp_path, '{"version"'), folders(tmp_path), timeout=0.5)


def test_one_that_closes_its_output_and_lives_on_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 20 >&-\n")
    program.chmod(0o755)
    monkeypatch.setattr(peer, "GRACE", 0.2)
    with pytest.raises(DFlashError, match=r"ended: it closed its output, lived on .* was killed"):
        PeerArm("dflash", str(program), folders(tmp_path))


@pytest.mark.parametrize("line", ["5", "null", "[]", "{}", '"error"', r"\377\376", "{"])
def test_a_line_that_is_no_reply_is_told(tmp_path: Path, line: str) -> None:
    with pytest.raises(DFlashError, match="no Python of the peer's environment"):
        PeerArm("dflash", says(tmp_path, line + r"\n"), folders(tmp_path), timeout=20)


def test_a_program_that_is_no_python_is_told_by_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match=r"no Python of the peer's environment.*'-I"):
        PeerArm("dflash", "/bin/echo", folders(tmp_path))


def test_a_peer_that_was_killed_is_told_and_closed_without_complaint(
    python: str, tmp_path: Path
) -> None:
    arm = PeerArm("dflash", python, folders(tmp_path))
    arm._process.kill()
    arm._process.wait()
    with pytest.raises(DFlashError, match="peer dflash ended"):
        arm.answer(asked([4]))
    arm.close()  # the request that nobody read is still in its pipe


def test_a_peer_that_is_not_installed_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match="peer mlx-dspark failed: ModuleNotFoundError"):
        PeerArm("mlx-dspark", sys.executable, folders(tmp_path))


@pytest.mark.parametrize("text", ["dflash", "other=python3", "dflash=/no/such/python"])
def test_a_peer_is_a_known_name_and_a_program(text: str) -> None:
    with pytest.raises(UsageError, match="--peer"):
        parse_peer(text)


def test_peers_get_the_very_weights_that_this_process_computes_with(tmp_path: Path) -> None:
    written = write_tiny_pair(tmp_path)
    _quantize(written.target)
    names = PairFolders("tiny", written.target, "drafter", written.drafter)
    pair = load_pair(names, None, prepare(exact=sys.platform == "linux"))
    if "dequantized" not in pair.configuration.target_dtype:
        pytest.fail("this test needs a machine that widens: the CPU backend")
    with peer_folders(pair, names) as given:
        assert given.dtype == "float32"
        config = json.loads((given.model / "config.json").read_text())
        assert "quantization" not in config
        weights = mx.load(str(given.model / "model.safetensors"))
        assert isinstance(weights, dict)
        ours = pair.target.body.layers[0].self_attn.q_proj.weight
        assert mx.array_equal(weights["model.layers.0.self_attn.q_proj.weight"], ours).item()
        assert (given.model / "tokenizer.json").exists()
    assert not given.model.exists()


def test_and_a_quantized_drafter_in_floats(tmp_path: Path) -> None:
    """No other program reads ours."""
    written = write_tiny_pair(tmp_path)
    ours = convert(written.drafter, tmp_path / "8bit", q_bits=8, q_group_size=32)
    names = PairFolders("tiny", written.target, "drafter", ours)
    pair = load_pair(names, None, prepare(exact=sys.platform == "linux"))
    with peer_folders(pair, names) as given:
        assert given.model == written.target
        assert "quantization" not in json.loads((given.draft / "config.json").read_text())
        held, drafter = load_drafter(given.draft), pair.drafter
        assert drafter is not None
        assert mx.array_equal(held.fc.weight, drafter.fc.weight).item()


def test_a_pair_that_is_not_widened_is_given_as_it_lies(tmp_path: Path) -> None:
    written = write_tiny_pair(tmp_path)
    names = PairFolders("tiny", written.target, "drafter", written.drafter)
    pair = load_pair(names, None, prepare(exact=sys.platform == "linux"))
    with peer_folders(pair, names) as given:
        assert given.model == written.target
        assert given.openblas is None


def _quantize(folder: Path) -> None:
    """The tiny target's projections in 4 bits, in place."""
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    model, config = load_model(folder)
    nn.quantize(model, 32, 4, class_predicate=lambda path, _: path.endswith("q_proj"))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config["quantization"] = {"group_size": 32, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
