"""Will a model live within float16? What was trained in bfloat16 may reach beyond 65,504."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import mlx.core as mx

from ..errors import DFlashError
from ..target.load import load_pair_tokenizer
from ..target.watch import Watch
from .files import parameters
from .quantize import is_float
from .source import Source

LIMIT = 65504.0
CALIBRATION = (
    "The lighthouse keeper climbed 217 steps every evening. def area(r): return 3.14159 * r ** 2\n"
    "Photosynthesis turns carbon dioxide and water into sugar; the equation is balanced with six"
    " molecules of each. « Où est la gare ? » she asked. SELECT name FROM cities WHERE size > 1e6;"
)
"""A prompt of prose, code, numbers and another language."""


def check_weights(source: Source) -> None:
    """Raise DFlashError unless float16 holds every weight."""
    for name, array in parameters(source.model).items():
        if is_float(array):
            largest = _peak(array)
            if not largest <= LIMIT:
                raise _overflow(name, largest)


def check_activations(source: Source, device: str) -> float:
    """Run the calibration prompt; the largest |x| that any module puts out.

    On a CPU it runs in float32, which is the faster there. Raises DFlashError that names the
    module whose output float16 cannot hold.
    """
    if device == "cpu":
        source.cast("float32")
    tokenizer = load_pair_tokenizer(Path(source.folder), source.config)
    prompt = mx.array([tokenizer.encode(CALIBRATION)[:128]])
    with Watch(dict(source.model.named_modules())).on() as notes:
        source.model(prompt)
    outputs = {path: call.out for path, call in notes.items() if isinstance(call.out, mx.array)}
    mx.eval(outputs)
    peaks = {path: _peak(out) for path, out in outputs.items()}
    for path, peak in peaks.items():
        if not peak <= LIMIT:
            raise _overflow(f"The output of {path or 'the model'}", peak)
    return max(peaks.values())


def _peak(array: mx.array) -> float:
    """The largest |x| of an array; not a number where one of it is none."""
    return cast(float, mx.abs(array.astype(mx.float32)).max().item())


def _overflow(what: str, largest: float) -> DFlashError:
    return DFlashError(
        f"{what} reaches {largest:,.0f}, which float16 cannot hold (its end is 65,504): use"
        " --dtype bfloat16 or float32."
    )
