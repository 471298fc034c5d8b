"""What a launch asked of the machine, counted. A count is not a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class BufferCounts:
    """Traffic of one kernel argument, in bytes and in distinct 32-byte sectors.

    Bytes are *requested*: every load and store of every thread. Sectors count what one threadgroup
    touches once, however often its threads ask, and add up over threadgroups: no cache is
    modelled.
    """

    read_bytes: int = 0
    read_sectors: int = 0
    written_bytes: int = 0
    written_sectors: int = 0
    unwritten_bytes: int = 0  # of an output: bytes that no thread wrote

    def __add__(self, other: BufferCounts) -> BufferCounts:
        return BufferCounts(
            self.read_bytes + other.read_bytes,
            self.read_sectors + other.read_sectors,
            self.written_bytes + other.written_bytes,
            self.written_sectors + other.written_sectors,
            self.unwritten_bytes + other.unwritten_bytes,
        )


@dataclass
class Counts:
    """Counts of one launch, or of several added up with ``+``.

    barriers and simd_barriers count one per threadgroup or SIMD-group that passes; simd_calls
    (simd_sum, shuffles, ...) one per SIMD-group; matrix_operations one per 8x8x8 product of a
    SIMD-group. operations counts scalar arithmetic over all threads as clang compiled it: "float"
    (an fma is two), "convert" (between number types), "integer" (addresses included),
    "transcendental". copied_bytes is what MLX would copy before the launch to make inputs
    contiguous (read plus written). buffers are those in device memory; what is read from constant
    memory, which a GPU keeps close, is only summed, in constant_bytes.
    """

    launches: int = 0
    threadgroups: int = 0
    threads: int = 0
    threadgroup_memory: int = 0  # bytes a threadgroup declares; the largest, when added up
    barriers: int = 0
    simd_barriers: int = 0
    simd_calls: int = 0
    matrix_operations: int = 0
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    copied_bytes: int = 0
    constant_bytes: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    buffers: dict[str, BufferCounts] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        """Requested from all device buffers."""
        return sum(buffer.read_bytes for buffer in self.buffers.values())

    @property
    def written_bytes(self) -> int:
        """Written to all device buffers."""
        return sum(buffer.written_bytes for buffer in self.buffers.values())

    def __add__(self, other: Counts) -> Counts:
        names = self.buffers.keys() | other.buffers.keys()
        none = BufferCounts()
        return Counts(
            launches=self.launches + other.launches,
            threadgroups=self.threadgroups + other.threadgroups,
            threads=self.threads + other.threads,
            threadgroup_memory=max(self.threadgroup_memory, other.threadgroup_memory),
            barriers=self.barriers + other.barriers,
            simd_barriers=self.simd_barriers + other.simd_barriers,
            simd_calls=self.simd_calls + other.simd_calls,
            matrix_operations=self.matrix_operations + other.matrix_operations,
            shared_read_bytes=self.shared_read_bytes + other.shared_read_bytes,
            shared_written_bytes=self.shared_written_bytes + other.shared_written_bytes,
            copied_bytes=self.copied_bytes + other.copied_bytes,
            constant_bytes=self.constant_bytes + other.constant_bytes,
            operations=self.operations + other.operations,
            buffers={n: self.buffers.get(n, none) + other.buffers.get(n, none) for n in names},
        )

    def __str__(self) -> str:
        lines = [
            f"launches {self.launches}, threadgroups {self.threadgroups}, threads {self.threads}",
            f"barriers {self.barriers}, SIMD calls {self.simd_calls}, "
            f"matrix operations {self.matrix_operations}",
            f"threadgroup memory {self.threadgroup_memory} bytes, "
            f"read {self.shared_read_bytes}, written {self.shared_written_bytes}",
            "operations " + ", ".join(f"{k} {n}" for k, n in sorted(self.operations.items())),
        ]
        for name, b in self.buffers.items():
            lines.append(
                f"  {name}: read {b.read_bytes} bytes in {b.read_sectors} sectors, "
                f"written {b.written_bytes} bytes in {b.written_sectors} sectors"
            )
        return "\n".join(lines)
