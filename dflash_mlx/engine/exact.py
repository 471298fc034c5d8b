"""`--exact` on a GPU: a row's bits do not depend on its company, proven at load on this device.

With our kernels every row is one computation at any number of rows, one included, so drafting is
the same text bit for bit. MLX's own steps between them (norms, the gate, embedding, ranking) are
rows for themselves too, and Metal leaves orders of addition open: so nothing is taken on trust. At
load the whole model, at its real shapes, computes blocks and the same rows one by one, and every
module's output is compared. What cannot keep the promise is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama, qwen3

from ..errors import DFlashError
from ..kernels.metal import MAX_ROWS
from ..target.model import Target
from ..target.rollback import rewind
from ..target.watch import Watch
from .options import Sampling
from .sampling import Chooser

FAMILIES = (llama.Model, qwen3.Model)
COUNTS = (2, 8, 9, 16, MAX_ROWS)
"""Rows of the blocks that are compared: each size of a tile, full and nearly empty."""

_CONTEXT = 600
"""Rows ahead of them: more than one split of attention."""


def prove(target: Target, rows: int = MAX_ROWS) -> None:
    """Raise DFlashError, naming what fails, unless k rows give the bits of k single rows.

    `rows` is the most that a block will have.
    """
    if reason := _refusal(target, rows):
        raise DFlashError(f"--exact is not possible here: {reason}. Leave the flag out.")
    try:
        _compare(target)
    except RuntimeError as error:
        raise DFlashError(
            f"--exact is not possible here: a kernel cannot run ({error}). Leave the flag out."
        ) from error


def _compare(target: Target) -> None:
    assert target.metal is not None
    before = target.metal.ran.copy()
    tokens = [(7 * i * i + 3 * i) % target.vocab_rows for i in range(MAX_ROWS)]
    cache = _filled(target)
    alone = [_pass(target, cache, [token], _CONTEXT + i) for i, token in enumerate(tokens)]
    for count in COUNTS:
        rewind(cache, _CONTEXT)
        together = _pass(target, cache, tokens[:count], _CONTEXT)
        for name, rows in together.items():
            singles = mx.concatenate([one[name] for one in alone[:count]], axis=1)
            if not _same_bits(rows, singles):
                raise DFlashError(
                    f"--exact is not possible on this GPU: {name} gives other bits for {count} rows"
                    " than for one. Leave the flag out, and please report this chip."
                )
    stock = sorted(name for name in target.metal.ran - before if ":" in name)
    if stock:
        raise DFlashError(
            f"--exact is not possible with this model ({'; '.join(stock)}). Leave the flag out."
        )


def _refusal(target: Target, rows: int) -> str | None:
    """Why it need not be tried; None if it is worth a proof."""
    if target.metal is None:
        return "it needs our kernels, which serve Metal GPUs only"
    if target.metal.referee is not None:
        return "with a race, one row and k rows may go different ways"
    if not isinstance(target.model, FAMILIES):
        return f"{type(target.model).__module__} is not among dense Llama and Qwen3 yet"
    if rows > MAX_ROWS:
        return f"a block of {rows} rows is more than our kernels take"
    if target.kv_bits is not None:
        return "no kernel serves keys and values in --kv-bits"
    if target.serving.stock:
        return f"no kernel serves its {', '.join(target.serving.stock)}"
    return None


def _filled(target: Target) -> list[Any]:
    """Caches with `_CONTEXT` random rows, of the shape that a pass gives them."""
    cache = target.make_cache()
    logits, _ = target.forward(mx.array([[0]]), cache)
    mx.eval(logits)
    for number, entry in enumerate(cache):
        batch, heads, _, dims = entry.keys.shape
        keys = iter(mx.random.split(mx.random.key(number), 2))
        rows = (
            mx.random.normal((batch, heads, _CONTEXT - 1, dims), entry.keys.dtype, key=key)
            for key in keys
        )
        entry.update_and_fetch(*rows)
        mx.eval(entry.keys, entry.values)
    return cache


def _pass(
    target: Target, cache: Sequence[Any], tokens: list[int], position: int
) -> dict[str, mx.array]:
    """What every module of the model gives for the rows `tokens`, and what is sampled, in order."""
    with target.serving.on(), Watch(dict(target.model.named_modules())).on() as notes:
        logits = target.model(mx.array([tokens]), cache=cache)
    outputs = {name: call.out for name, call in notes.items() if isinstance(call.out, mx.array)}
    del outputs[""]
    chooser = Chooser(Sampling(temperature=0.8, top_p=0.9, min_p=0.01, top_k=50))
    choices = chooser.choose(logits[0], [0] * position, mx.array(tokens[1:], mx.int32))
    outputs |= {"the head": logits, "sampling": choices[None]}
    mx.eval(outputs, [entry.state for entry in cache])
    return outputs


def _same_bits(one: mx.array, other: mx.array) -> bool:
    """Whether two arrays of a type agree in every bit."""
    word = mx.uint16 if one.itemsize == 2 else mx.uint32
    return one.shape == other.shape and bool(mx.array_equal(one.view(word), other.view(word)))
