"""Which kernels serve a pair on this machine, decided when it is loaded.

With `--exact` ours serve everything, and prove themselves. Else each of their cases races MLX's own
(see `kernels.race`): those of one row and of blocks when the pair is loaded, others when they come.
"""

from __future__ import annotations

import time
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from ..kernels.metal import Metal, source_folder
from ..kernels.race import Referee, file_name
from .context import Context
from .options import Sampling
from .sampling import Chooser

ROWS = (1, 2, 4, 6, 8, 12, 16)
"""Rows of the passes that race."""

_CONTEXT = 40
"""Tokens ahead of them: more than a prefill of ours takes."""


def kernels(exact: bool, folder: Path | None) -> Metal:
    """The kernels of this machine's GPU, without a race where they must be `exact`.

    Verdicts are kept in `folder` (None: nowhere).
    """
    if exact:
        return Metal()
    chip = str(mx.device_info()["device_name"])
    name = f"kernels-{file_name(chip, version('mlx'), sources())}"
    return Metal(referee=Referee(time.perf_counter, folder / name if folder else None))


def sources() -> str:
    """A short word for the text of all kernels."""
    files = sorted(path for path in source_folder().iterdir() if path.is_file())
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def race_first(context: Context, verified: int, drafted: int) -> None:
    """Let the cases race that a pair will meet: passes of the target, and drafts, by `ROWS`.

    Up to `verified` and `drafted` rows.
    """
    target, drafting = context.target, context.drafting
    tokens = [(7 * i * i + 3 * i) % target.vocab_rows for i in range(_CONTEXT)]
    context.prefill(tokens, drafting is not None)
    for rows in (rows for rows in ROWS if rows <= verified):
        with target.round(context.cache, rows) as turn:
            logits, _ = turn.forward(mx.array([tokens[:rows]]))
            mx.eval(logits)
            turn.commit(1)
        if drafting is not None and 1 < rows <= drafted:
            for sampling in (Sampling(), Sampling(temperature=1.0)):
                mx.eval(drafting.propose(tokens, rows, Chooser(sampling)))
