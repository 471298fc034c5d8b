"""`dflash-mlx doctor`: what is wrong here, and what to do about it.

MLX is imported by the checks that need it, after another process has shown that it can be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from ..backend import Backend, prepare
from ..doctor import installation
from ..doctor.finding import Finding
from ..errors import DFlashError
from ..hub.embedded import NAME
from ..hub.fit import this_machine
from ..hub.store import cache_root
from ..machine import chip, versions
from .doctor_arguments import DoctorArguments
from .loading import silence_libraries


def run(arguments: DoctorArguments) -> int:
    """Look at everything and print each finding as it comes; 1 if something is wrong."""
    silence_libraries()
    findings = []
    for finding in examine(arguments):
        findings.append(finding)
        if not arguments.json:
            print(finding.line, flush=True)
    wrong = sum(finding.status == "wrong" for finding in findings)
    if arguments.json:
        found = [{**asdict(f), "figures": _finite(f.figures)} for f in findings]
        print(json.dumps({"healthy": not wrong, "versions": versions(), "findings": found}))
    else:
        print(f"\n{wrong or 'Nothing'} {'are' if wrong > 1 else 'is'} wrong.")
    return 1 if wrong else 0


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    """With null for what overflowed, since JSON knows no infinity."""
    lost = [k for k, v in figures.items() if isinstance(v, float) and not isfinite(v)]
    return {**figures, **dict.fromkeys(lost)}


def examine(arguments: DoctorArguments) -> Iterator[Finding]:
    """All findings, those that need no MLX first."""
    root = arguments.cache_dir or cache_root()
    yield installation.platform_finding()
    yield from installation.version_findings(versions())
    yield installation.memory_finding(this_machine(), chip())
    limit = installation.wired_limit_mb()
    if limit is not None:
        yield installation.wired_finding(this_machine().memory, limit)
    yield installation.disk_finding(root)
    yield from installation.cache_findings(root)
    usable = installation.import_finding()
    yield usable
    if usable.status == "wrong":
        yield Finding("numbers", "note", "not looked at, since MLX cannot be used")
        return
    yield from _with_mlx(arguments, root)


def _with_mlx(arguments: DoctorArguments, root: Path) -> Iterator[Finding]:
    try:
        backend = prepare()
    except DFlashError as error:
        yield Finding("backend", "wrong", str(error).rstrip("."))
        return
    yield from backend_findings(backend)
    from ..doctor.numerics import numeric_findings

    yield from numeric_findings(backend.device)
    if arguments.model is None and not (root / NAME / "config.json").exists():
        cure = f"`dflash-mlx models pull {NAME}`, then run this again"
        yield Finding("identity", "note", f"not looked at, since {NAME} is not set up", cure)
        return
    yield from _of_the_pair(arguments)


def backend_findings(backend: Backend) -> Iterator[Finding]:
    """What computes, and what keeps it from being as fast as it could be."""
    blas = f", {backend.blas} BLAS" if backend.device == "cpu" else ""
    compiled = "" if backend.compiled else ", not compiled"
    yield Finding("backend", "ok", f"{backend.device}{blas}{compiled}")
    for note in backend.notes:
        yield Finding("backend", "note", note)


def _of_the_pair(arguments: DoctorArguments) -> Iterator[Finding]:
    from ..api import load
    from ..doctor.pair import pair_findings

    try:
        pair = load(arguments.model, arguments.draft_model, cache_dir=arguments.cache_dir)
        yield from pair_findings(pair)
    except DFlashError as error:
        yield Finding("identity", "wrong", str(error).rstrip("."))
