"""The Metal sources, and how an op gets a kernel of them.

A file of `metal/` holds what precedes the kernel, a line `// body`, and the kernel's body; MLX
writes the signature between the two. Ops take a `Metal`: it makes each kernel once, with
`mx.fast.metal_kernel` or, in tests, the simulator's, and it remembers what ran. Without one an op
is its plain-MLX twin.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import DFlashError
from .race import Contest, Referee

Kernel = Callable[..., list[mx.array]]
"""What `mx.fast.metal_kernel` returns."""

MAX_ROWS = 32
MORE_ROWS = f"more than {MAX_ROWS} rows"
"""The obstacle that prefill is: it stays MLX's own, and needs no mention."""

_COMMENT = re.compile(r"[ \t]*//[^\n]*")


@cache
def source_folder() -> Path:
    """The folder of the Metal sources: `dflash_mlx/metal` of a wheel, `metal` of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "metal", package.parent / "metal"):
        if folder.is_dir():
            return folder
    raise DFlashError("The Metal sources are missing from this installation: reinstall dflash-mlx.")


@cache
def read_source(name: str, headers: tuple[str, ...] = ()) -> tuple[str, str]:
    """What precedes the kernel `name`, with the shared `headers` first, and its body.

    Comments go, since MLX hashes the whole source at every call; lines keep their numbers.
    """
    own = (source_folder() / f"{name}.metal").read_text()
    before, _, body = own.partition("\n// body\n")
    shared = [(source_folder() / header).read_text() for header in headers]
    return _COMMENT.sub("", "\n".join([*shared, before])).lstrip(), _COMMENT.sub("", body)


class Metal:
    """The kernels of one device.

    `metal_kernel` builds them (default: MLX's); `kernels` are those built so far. `ran` counts, by
    words such as "accept" or "block_attention: twin, head dim 40", which implementation served each
    call. With a `referee`, a kernel serves only where it won the `race`; else wherever it can.
    """

    def __init__(
        self,
        metal_kernel: Callable[..., Any] = mx.fast.metal_kernel,
        referee: Referee | None = None,
    ):
        self._metal_kernel = metal_kernel
        self.kernels: dict[str, Kernel] = {}
        self.referee = referee
        self.ran: Counter[str] = Counter()

    def kernel(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], *headers: str
    ) -> Kernel:
        """The kernel in `metal/<name>.metal`, after the shared `headers`."""
        if name not in self.kernels:
            header, body = read_source(name, headers)
            self.kernels[name] = self._metal_kernel(
                name=f"dflash_{name}",
                input_names=list(inputs),
                output_names=list(outputs),
                header=header,
                source=body,
            )
        return self.kernels[name]

    def serves(self, op: str, obstacle: str | None, contest: Contest | None = None) -> bool:
        """Whether the kernel takes this call of `op`: unless there is an obstacle, or it lost."""
        if obstacle is None and contest is not None and self.referee is not None:
            verdict = self.referee(contest)
            obstacle = None if verdict.won else verdict.why_not
        self.ran[op if obstacle is None else f"{op}: twin, {obstacle}"] += 1
        return obstacle is None


def summary(ran: Mapping[str, int], stock: Sequence[str] = ()) -> str:
    """What `ran`, in one line: the kernels by name, then what had to be MLX's own and why.

    `stock` names kinds of modules that no op serves. Prefill goes without saying.
    """
    served = sorted(name for name in ran if ":" not in name)
    if not served:
        return "stock MLX"
    others = sorted(name for name in ran if ":" in name and not name.endswith(MORE_ROWS))
    told = [name.replace(": twin", " by stock MLX") for name in others]
    told += [f"{name} by stock MLX" for name in stock]
    return "; ".join([f"kernels {' '.join(served)}", *told])
