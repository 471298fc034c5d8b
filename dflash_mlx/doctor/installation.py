"""What can be told without MLX: the platform, versions, memory, disk, and what lies in caches.

Nothing here imports MLX, since a broken MLX is what somebody may be looking for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from ..backend import platform_problem, this_platform
from ..errors import DFlashError
from ..hub.embedded import NAME
from ..hub.fit import GIB, Machine
from ..hub.inventory import Held, held_models
from .finding import Finding

_ROOM = 2 * GIB
"""Free bytes below which not even the embedded pair is sure to be set up."""
_SMALL_RESERVE, _RESERVED_SHARE = 4 * GIB, 8
_PROGRAM = (
    "import mlx.core as mx; assert (mx.ones(2) + 1).tolist() == [2, 2]; print(mx.default_device())"
)
_IMPORT_SECONDS = 120.0
"""In which even a slow disk has read MLX for the first time."""
_REINSTALL = "`python -m pip install --force-reinstall {}`"


def platform_finding() -> Finding:
    """Whether MLX supports this platform at all."""
    problem = platform_problem(*this_platform())
    if problem:
        return Finding("platform", "wrong", problem.rstrip("."))
    return Finding("platform", "ok", "supported by MLX")


def version_findings(
    found: Mapping[str, str], requirements: Sequence[str] | None = None
) -> Iterator[Finding]:
    """Whether versions are those that this program was tested with, and mlx's parts in step.

    `found` are versions by name; `requirements` those of this program (default: as installed).
    """
    backends = [name for name in ("mlx-metal", "mlx-cpu") if name in found]
    for name in backends:
        if found[name] != found.get("mlx"):
            wanted = f"mlx=={found.get('mlx', found[name])} {name}=={found.get('mlx', found[name])}"
            words = f"mlx {found.get('mlx', 'missing')} with {name} {found[name]}: out of step"
            yield Finding("versions", "wrong", words, _REINSTALL.format(wanted))
    for requirement in map(Requirement, _ours() if requirements is None else requirements):
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        version = found.get(requirement.name)
        if not needed or requirement.name not in ("mlx", "mlx-lm", "transformers"):
            continue
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            words = f"{requirement.name} {version or 'is missing'}, but {requirement.specifier}"
            cure = _REINSTALL.format(f"'{requirement.name}{requirement.specifier}'")
            yield Finding("versions", "wrong", f"{words} is what was tested", cure)
    told = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding("versions", "ok", told, figures=dict(found))


def import_finding(python: str = sys.executable, timeout: float = _IMPORT_SECONDS) -> Finding:
    """Whether MLX can be imported and add within `timeout` seconds.

    It is tried in another process, lest it takes this one down, or never comes back.
    """
    cure = _REINSTALL.format("mlx mlx-metal" if sys.platform == "darwin" else "'mlx[cpu]'")
    program = [python, "-c", _PROGRAM]
    try:
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        words = f"cannot be used: it says nothing for {timeout:g} seconds"
        return Finding("mlx", "wrong", words, f"restart the machine, then {cure}")
    if done.returncode == 0:
        return Finding("mlx", "ok", f"computes on {done.stdout.strip()}")
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return Finding("mlx", "wrong", f"cannot be used: {last[0]}", cure)


def memory_finding(machine: Machine, chip: str) -> Finding:
    """The chip and its memory, and how much of it models may take."""
    words = f"{chip}; models may take {machine.usable / GIB:.1f} GB"
    if machine.memory < 8 * GIB:
        return Finding("memory", "note", words, "choose models of up to 1 billion parameters")
    return Finding("memory", "ok", words, figures={"bytes": machine.memory})


def wired_finding(memory: int, limit_mb: int) -> Finding:
    """Whether a Mac's limit on wired memory (`iogpu.wired_limit_mb`; 0: the system's) is sane.

    Above all but an eighth of the memory, and at least 4 GB, the system itself runs short, and
    Macs have frozen. `memory` is in bytes.
    """
    most = (memory - max(memory // _RESERVED_SHARE, _SMALL_RESERVE)) >> 20
    if limit_mb > most:
        words = f"{limit_mb:,} MB of {memory >> 20:,} MB may be wired: the system may freeze"
        cure = f"`sudo sysctl iogpu.wired_limit_mb={most}`, or 0 for the system's own limit"
        return Finding("wired memory", "wrong", words, cure)
    if limit_mb == 0:
        words = "the system's own limit"
        cure = f"raise it only for a model that just misses: up to iogpu.wired_limit_mb={most}"
        return Finding("wired memory", "ok", words, cure if most > 0 else "")
    return Finding("wired memory", "ok", f"{limit_mb:,} MB, which leaves the system enough")


def wired_limit_mb() -> int | None:
    """The limit that is set on this Mac, in MB; None elsewhere."""
    if sys.platform != "darwin":
        return None
    command = ["/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(answer) if answer.isdecimal() else None


def disk_finding(root: Path) -> Finding:
    """Whether conversions and models have room where they are kept, and may be written."""
    place = next(p for p in (root, *root.parents) if p.exists())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        cure = "choose another place with --cache-dir, or mend its permissions"
        return Finding("disk", "wrong", f"{place} cannot be written", cure)
    if free < _ROOM:
        words = f"{free / GIB:.1f} GB are free at {place}"
        return Finding("disk", "wrong", words, "free some: `dflash-mlx models rm NAME`")
    return Finding("disk", "ok", f"{free / GIB:.1f} GB are free at {place}")


def cache_findings(root: Path, hub: Path | None = None) -> Iterator[Finding]:
    """What lies on this machine, and what of it is not whole. `hub` is the hub's cache."""
    try:
        models = held_models(root, hub)
    except (DFlashError, OSError) as error:
        yield Finding("caches", "wrong", str(error).rstrip("."))
        return
    for model in models:
        if not model.whole:
            cure = f"`dflash-mlx models pull {model.name}` goes on with it"
            yield Finding("caches", "note", f"{model.name} is unfinished", cure)
    if not any(model.name == NAME and model.whole for model in models):
        yield Finding("caches", "note", f"{NAME} is not set up", f"`dflash-mlx models pull {NAME}`")
    yield Finding("caches", "ok", _held(models), figures={"bytes": sum(m.nbytes for m in models)})


def _held(models: Sequence[Held]) -> str:
    size = sum(model.nbytes for model in models)
    return f"{len(models)} models, {size / GIB:.1f} GB"


def _ours() -> list[str]:
    try:
        return metadata.requires("dflash-mlx") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed states none
        return []
