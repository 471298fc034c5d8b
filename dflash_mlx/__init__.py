"""Fast, private, offline chat with large language models on a Mac, by DFlash drafting on MLX.

    from dflash_mlx import load, generate

    pair = load()
    print(generate(pair, [{"role": "user", "content": "What is gravity?"}]).text)

The public names are imported when first used, so that importing the package costs nothing and
the machine can be prepared before MLX is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .api import generate, load, stream_generate
    from .engine.events import Event, Result, Stats
    from .engine.options import Options, Sampling
    from .engine.session import Session
    from .errors import DFlashError, UsageError
    from .pair import Pair

_HOMES = {
    "load": ".api",
    "generate": ".api",
    "stream_generate": ".api",
    "Pair": ".pair",
    "Session": ".engine.session",
    "Options": ".engine.options",
    "Sampling": ".engine.options",
    "Event": ".engine.events",
    "Result": ".engine.events",
    "Stats": ".engine.events",
    "DFlashError": ".errors",
    "UsageError": ".errors",
}

__all__ = [
    "DFlashError",
    "Event",
    "Options",
    "Pair",
    "Result",
    "Sampling",
    "Session",
    "Stats",
    "UsageError",
    "__version__",
    "generate",
    "load",
    "stream_generate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dflash_mlx' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
