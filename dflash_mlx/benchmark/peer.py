"""Other DFlash programs on the same pair, each in its own process and its own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from ..backend import OPENBLAS
from ..drafter import load_drafter
from ..errors import DFlashError, UsageError
from ..hub.pairs import PairFolders
from ..model_folder import read_json
from ..pair import Pair
from ..quantized import KEYS
from .peer_adapter import PEERS
from .sample import Asked, Sample

ADAPTER = Path(__file__).with_name("peer_adapter.py")
TIMEOUT = 600.0
"""Seconds in which a peer must have loaded the pair, or given an answer."""

GRACE = 10.0
"""Seconds in which a peer that closed its output must be gone."""


@dataclass(frozen=True)
class PeerFolders:
    """What a peer loads, and how: folders, the number format, and the BLAS to load first."""

    model: Path
    draft: Path
    dtype: str
    openblas: str | None


@contextmanager
def peer_folders(pair: Pair, names: PairFolders) -> Iterator[PeerFolders]:
    """The pair for peers, with the very weights that this process computes with, drafter's too.

    Where those were widened from a quantized folder, as on a CPU, they are written out for as long
    as the context lasts: else a peer would pay for slow quantized products, and for other rounding.
    """
    if names.draft_folder is None:
        raise DFlashError("Peers draft, and this model has no drafter: name one as --draft-model.")
    dtype = pair.configuration.target_dtype.partition(" ")[0]
    openblas = OPENBLAS if pair.configuration.blas == "openblas" else None
    model, draft = names.model_folder, names.draft_folder
    with tempfile.TemporaryDirectory(prefix="dflash-mlx-peer-") as place:
        if "dequantized" in pair.configuration.target_dtype:
            model = Path(place) / "target" / model.name
            _write_widened(pair.target.model, names.model_folder, model)
        if "dequantized" in (pair.configuration.draft_dtype or ""):
            drafter = dequantize_model(load_drafter(draft, getattr(mx, dtype)))
            draft = Path(place) / "drafter" / draft.name
            _write_widened(drafter, names.draft_folder, draft)
        yield PeerFolders(model, draft, dtype, openblas)


def _write_widened(module: nn.Module, source: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and "index" not in file.name:
            shutil.copy(file, folder)
    config = read_json(source / "config.json")
    for key in KEYS:
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def parse_peer(text: str) -> tuple[str, str]:
    """`NAME=PYTHON` as its two halves. Raises UsageError, and where there is no such Python."""
    name, equals, python = text.partition("=")
    if not equals or name not in PEERS:
        raise UsageError(
            f"--peer takes NAME=PYTHON, where NAME is {', '.join(PEERS)} and PYTHON the interpreter"
            f" of its environment; it was {text!r}."
        )
    if shutil.which(python) is None:
        raise UsageError(f"--peer {name}: there is no program {python}.")
    return name, python


class PeerArm:
    """A peer at work. Its process lives from the first request to `close`.

    One that says no whole line for `timeout` seconds is ended.
    """

    same_rule = False

    def __init__(
        self, name: str, python: str, folders: PeerFolders, timeout: float = TIMEOUT
    ) -> None:
        self.name = name
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._process = subprocess.Popen(
            [python, "-I", str(ADAPTER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        about = {
            "model": str(folders.model.resolve()),
            "draft": str(folders.draft.resolve()),
            "dtype": folders.dtype,
            "openblas": folders.openblas,
        }
        try:
            loaded = self._ask({"load": about}, "version", "settings")
        except BaseException:
            self.close()
            raise
        self.version: str = loaded["version"]
        self._settings: Sequence[str] = loaded["settings"]
        self.samples = "temperature" in self._settings

    @property
    def note(self) -> str:
        """What was measured, and what the peer cannot be told."""
        known = ", ".join(self._settings) or "nothing: it is greedy"
        return f"{self.name} is version {self.version}; of sampling it takes {known}"

    def answer(self, asked: Asked) -> Sample:
        """Answer once. Raises DFlashError with the peer's own words where it fails."""
        sampling = vars(asked.sampling) if asked.sampling else {}
        reply = self._ask(
            {
                "tokens": asked.tokens,
                "max_tokens": asked.max_tokens,
                "sampling": {k: v for k, v in sampling.items() if k in self._settings},
                "seed": asked.seed,
            },
            *("tokens", "rounds", "prefill", "decode"),
        )
        tokens = reply["tokens"]
        return Sample(
            "",
            len(asked.tokens),
            len(tokens),
            reply["prefill"],
            reply["decode"],
            tokens,
            [accepted for accepted, _ in reply["rounds"]],
            [drafted for _, drafted in reply["rounds"]],
        )

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # what a peer that is gone never read
                if pipe and not pipe.closed:
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _ask(self, request: dict[str, Any], *wanted: str) -> dict[str, Any]:
        """The reply, which has the `wanted`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone, and may have said why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        line = self._line()
        if not line:
            raise DFlashError(f"The peer {self.name} ended: {self._last_words()}.")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if isinstance(reply, dict) and "error" in reply:
            raise DFlashError(f"The peer {self.name} failed: {reply['error']}.")
        if not isinstance(reply, dict) or not reply.keys() >= set(wanted):
            raise DFlashError(
                f"The peer {self.name} is no Python of the peer's environment: it said"
                f" {line.decode(errors='replace').strip()[:80]!r}."
            )
        return reply

    def _line(self) -> bytes:
        """What the peer says up to the end of a line, or of its output."""
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + self._timeout, b""
        while b"\n" not in line:
            left = max(deadline - time.monotonic(), 0)
            if not select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                raise DFlashError(
                    f"The peer {self.name} said nothing for {self._timeout:g} seconds and was"
                    " ended: see that it works by itself, or ask for fewer --max-tokens."
                )
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                break
            line += part
        return line

    def _last_words(self) -> str:
        try:
            end = f"exit code {self._process.wait(GRACE)}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            end = f"it closed its output, lived on for {GRACE:g} seconds and was killed"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else end
