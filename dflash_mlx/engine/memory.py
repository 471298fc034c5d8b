"""How much of a Mac's memory MLX may take, keep and hold in place, so that the Mac stays usable.

The GPU's memory is everybody's. With too little of it wired (held in place), a large model is paged
in anew at every step; with all of it wired, a Mac of 16 GB freezes. MLX also keeps freed buffers
for reuse, by default without a bound that a small machine would feel in time. (Users' reports:
gh:osaurus-ai/vmlx-swift#417 and #421, gh:ml-explore/mlx#3129.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

GIB = 1 << 30


class Allocator(Protocol):
    """What `mlx.core` offers; each call returns the limit that held before."""

    def set_wired_limit(self, limit: int) -> int:
        """Bytes that may be held in place."""

    def set_memory_limit(self, limit: int) -> int:
        """Bytes from which on an allocation waits for others to be freed."""

    def set_cache_limit(self, limit: int) -> int:
        """Bytes of freed buffers that are kept for reuse."""


@dataclass(frozen=True)
class Limits:
    """In bytes: held in place, allocated in all, and kept for reuse once freed."""

    wired: int
    memory: int
    cache: int


def reserve(memory: int) -> int:
    """Bytes of a machine with so many that are always the system's: an eighth, at least 2 GiB."""
    return max(2 * GIB, memory // 8)


def limits(model_bytes: int, memory: int, working_set: int) -> Limits:
    """The limits for models of `model_bytes` on a machine with `memory` bytes.

    `working_set` is what Metal recommends that a program takes. Wired are the weights and a quarter
    more, at least 1 GiB, for caches and work; but a tenth of the working set stays free, and so
    does the reserve. At most a sixteenth of the memory, and 4 GiB, is kept for reuse.
    """
    most = min(9 * working_set // 10, memory - reserve(memory))
    wanted = model_bytes + max(GIB, model_bytes // 4)
    return Limits(
        wired=min(wanted, most),
        memory=memory - reserve(memory),
        cache=min(memory // 16, 4 * GIB),
    )


def machine_limits(model_bytes: int, device: dict[str, Any]) -> Limits | None:
    """The limits on the machine that `mx.device_info()` describes; None where it has no Metal."""
    working_set = int(device.get("max_recommended_working_set_size", 0))
    memory = int(device.get("memory_size", 0))
    return limits(model_bytes, memory, working_set) if working_set and memory else None


def hold(wanted: Limits, allocator: Allocator) -> Callable[[], None]:
    """Set the limits; returns what sets them back to what they were."""
    before = Limits(
        wired=allocator.set_wired_limit(wanted.wired),
        memory=allocator.set_memory_limit(wanted.memory),
        cache=allocator.set_cache_limit(wanted.cache),
    )

    def release() -> None:
        allocator.set_wired_limit(before.wired)
        allocator.set_memory_limit(before.memory)
        allocator.set_cache_limit(before.cache)

    return release
