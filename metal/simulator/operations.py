"""Counts arithmetic: a counter in every basic block of a kernel, and what each block computes.

Works on LLVM's text, after clang's optimizer: blocks of functions that carry the address checks
(the kernel's own, not the simulator's). How often a block ran, times the operations in it, is the
count. It is clang's view of the kernel; another compiler shares the floating-point part and not
always the integer part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

COUNTERS = "simulator_blocks"  # the symbol: one 64-bit counter a block

_KINDS = {
    **dict.fromkeys(("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "fcmp"), "float"),
    **dict.fromkeys(
        ("fptrunc", "fpext", "uitofp", "sitofp", "fptoui", "fptosi"),
        "convert",
    ),
    **dict.fromkeys(
        (
            "add",
            "sub",
            "mul",
            "udiv",
            "sdiv",
            "urem",
            "srem",
            "shl",
            "lshr",
            "ashr",
            "and",
            "or",
            "xor",
        ),
        "integer",
    ),
}
_OPCODE = re.compile(r"^  %\S+ = ([a-z]+) (?:[a-z]+ )*(?:<(\d+) x|\S)")
_FMA = re.compile(r"@llvm\.(?:fma|fmuladd)\.(?:v(\d+))?")
_TRANSCENDENTAL = re.compile(r"@simulator_(?:exp|log|sin|cos|tan|erf|atan2|pow|rsqrt)")
_MINMAX = re.compile(r"@llvm\.(?:minnum|maxnum|fabs|sqrt|floor|ceil|trunc|round|rint)\.(?:v(\d+))?")
_INTEGER = re.compile(r"@llvm\.(?:[su]min|[su]max|fsh[lr]|ctpop|ctlz|cttz|abs)\.(?:v(\d+))?")
_TERMINATOR = re.compile(r"^  (?:br|ret|switch|unreachable|indirectbr)\b")


def operations_of(line: str) -> Counter[str]:
    """What one instruction of LLVM's text computes, by kind."""
    if "!nosanitize" in line:
        return Counter()
    if found := _FMA.search(line):
        return Counter(float=2 * int(found.group(1) or 1))
    if found := _MINMAX.search(line):
        return Counter(float=int(found.group(1) or 1))
    if found := _INTEGER.search(line):
        return Counter(integer=int(found.group(1) or 1))
    if _TRANSCENDENTAL.search(line):
        return Counter(transcendental=1)
    found = _OPCODE.match(line)
    kind = _KINDS.get(found.group(1)) if found else None
    return Counter({kind: int(found.group(2) or 1)}) if found and kind else Counter()


def _counter(index: int, total: str) -> list[str]:
    place = f"getelementptr ([{total} x i64], ptr @{COUNTERS}, i64 0, i64 {index})"
    return [
        f"  %sim.old.{index} = load i64, ptr {place}",
        f"  %sim.new.{index} = add i64 %sim.old.{index}, 1",
        f"  store i64 %sim.new.{index}, ptr {place}",
    ]


def instrument(code: str) -> str:
    """Add the counters to LLVM's text, and beside them a table of what each block computes."""
    checked = set(
        re.findall(r"^attributes (#\d+) = \{[^}]*\bsanitize_address\b", code, re.MULTILINE)
    )
    out: list[str] = []
    blocks: list[Counter[str]] = []
    inside = False
    here: Counter[str] = Counter()
    for line in code.splitlines():
        if line.startswith("define "):
            inside = any(attribute in checked for attribute in re.findall(r"#\d+", line))
            here = Counter()
        elif line == "}":
            inside = False
        elif inside and _TERMINATOR.match(line):
            out += _counter(len(blocks), "TOTAL")
            blocks.append(here)
            here = Counter()
        elif inside and line.startswith("  "):
            here += operations_of(line)
        out.append(line)
    text = "\n".join(out).replace("[TOTAL x i64]", f"[{max(len(blocks), 1)} x i64]")
    return text + "\n" + _table(blocks)


_COLUMNS = ("float", "convert", "integer", "transcendental")


def _table(blocks: Sequence[Counter[str]]) -> str:
    count = max(len(blocks), 1)
    rows = [str(block[kind]) for block in blocks for kind in _COLUMNS] or ["0"] * len(_COLUMNS)
    values = ", ".join(f"i32 {value}" for value in rows)
    return (
        f"@{COUNTERS} = global [{count} x i64] zeroinitializer\n"
        f"@{COUNTERS}_count = constant i64 {count}\n"
        f"@{COUNTERS}_table = constant [{len(rows)} x i32] [{values}]\n"
    )


def total(counters: Sequence[int], table: Sequence[int]) -> Counter[str]:
    """The operations of a launch, from the counters and the table that `instrument` made."""
    width = len(_COLUMNS)
    sums = Counter(dict.fromkeys(_COLUMNS, 0))
    for i, times in enumerate(counters):
        if times:
            for j, kind in enumerate(_COLUMNS):
                sums[kind] += times * table[width * i + j]
    return sums
