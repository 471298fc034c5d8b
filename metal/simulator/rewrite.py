"""Metal source to C++, by a few mechanical replacements that keep every line in its place.

Everything else that Metal adds to C++ is done by headers (`include/`): keywords become macros,
`[[...]]` attributes are unknown and ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SCALARS = "bool|char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float"
_VECTOR_CALL = re.compile(rf"(?<![\w:])((?:packed_)?(?:{_SCALARS})[234])\s*\((?!\))")
_VEC_TEMPLATE_CALL = re.compile(r"(?<!operator )\b((?:metal::)?vec<[^<>;{}()]+>)\s*\((?!\))")
_THREADGROUP_VARIABLE = re.compile(
    r"\bthreadgroup[ \t]+((?:const\s+)?[A-Za-z_][\w:]*(?:<[^;{}()]*>)?)\s+"  # the type
    r"([A-Za-z_]\w*)\s*((?:\[[^\]]+\]\s*)*);"  # name and dimensions
)
_THREADGROUP_LIST = re.compile(
    r"\bthreadgroup[ \t]+([A-Za-z_][\w:]*)\s+"
    r"([A-Za-z_]\w*\s*\[[^\]]+\](?:\s*,\s*[A-Za-z_]\w*\s*\[[^\]]+\])+)\s*;"
)
_POINTER_ELEMENT = re.compile(
    r"template <typename T>\s*"
    r"struct pointer_element<(?:device|constant|threadgroup) T\*> \{[^}]*\};"
)
_THREADGROUP_ARGUMENT = re.compile(r"\[\[threadgroup\(\d+\)\]\]")
_ARRAY_PARAMETER = re.compile(r"\b((?:constant|device|threadgroup) const \w+) (\w+)\[\d+\](?=[,)])")
_PRAGMA_CONTRACT = re.compile(r"#\s*pragma\s+METAL\s+fp\s+contract\s*\((\w+)\)")
_PRAGMA_OTHER = re.compile(r"#\s*pragma\s+METAL\b[^\n]*")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group(0).count("\n")


def _split_list(match: re.Match[str]) -> str:
    names = re.findall(r"([A-Za-z_]\w*)\s*(\[[^\]]+\])", match.group(2))
    lines = "\n" * match.group(0).count("\n")
    return " ".join(f"threadgroup {match.group(1)} {n} {d};" for n, d in names) + lines


def to_cpp(metal: str) -> str:
    """Metal text as C++ text with the same lines."""
    text = _PRAGMA_CONTRACT.sub(lambda m: f"#pragma clang fp contract({m.group(1)})", metal)
    text = _PRAGMA_OTHER.sub("", text)
    text = _THREADGROUP_ARGUMENT.sub("", text)
    text = _ARRAY_PARAMETER.sub(r"\1* \2", text)
    text = _POINTER_ELEMENT.sub(_blank, text)
    text = _THREADGROUP_LIST.sub(_split_list, text)
    text = _THREADGROUP_VARIABLE.sub(
        lambda m: f"SIMULATOR_SHARED({m.group(2)}, {m.group(3)}, {m.group(1)})", text
    )
    text = _VECTOR_CALL.sub(r"make_vector<\1>(", text)
    return _VEC_TEMPLATE_CALL.sub(r"make_vector<\1 >(", text)


@dataclass(frozen=True)
class Parameter:
    """A kernel argument: a buffer (`builtin` empty), or a value such as thread_position_in_grid."""

    name: str
    builtin: str = ""
    constant: bool = False  # in constant memory
    const: bool = False


_BUILTIN = re.compile(r"\[\[\s*((?!buffer|function_constant)\w+)\s*\]\]")


def parameters(metal: str, function: str) -> list[Parameter]:
    """The arguments of the kernel `function`, in order; ValueError if there is no such kernel."""
    start = re.search(rf"\bvoid\s+{re.escape(function)}\s*\(", metal)
    if start is None:
        raise ValueError(f"no kernel `{function}` in the source")
    depth, end = 1, start.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(metal[end], 0)
        end += 1
    parts = re.split(r",(?![^\[]*\]\])", _strip_comments(metal[start.end() : end - 1]))
    return [_parameter(part) for part in parts if part.strip()]


def _strip_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _parameter(text: str) -> Parameter:
    builtin = _BUILTIN.search(text)
    plain = re.sub(r"\[\[.*?\]\]", "", text, flags=re.DOTALL).strip()
    found = re.search(r"(\w+)$", plain)
    if found is None:
        raise ValueError(f"cannot read the kernel argument `{text.strip()}`")
    words = re.findall(r"\w+", plain)
    return Parameter(
        name=found.group(1),
        builtin=builtin.group(1) if builtin else "",
        constant="constant" in words,
        const="const" in words or "constant" in words,
    )


_MEMBERS = {
    "thread_position_in_grid": "position_in_grid",
    "thread_position_in_threadgroup": "position_in_threadgroup",
    "threadgroup_position_in_grid": "threadgroup_position",
    "threads_per_threadgroup": "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup": "threads_per_threadgroup",
    "threadgroups_per_grid": "threadgroups_per_grid",
    "threads_per_grid": "threads_per_grid",
}
_NUMBERS = {
    "thread_index_in_threadgroup": "index",
    "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "simdgroup",
    "simdgroups_per_threadgroup": "simdgroups",
    "threads_per_simdgroup": "lanes",
    "thread_execution_width": "lanes",
    "thread_index_in_quadgroup": "quad_lane",
    "quadgroup_index_in_threadgroup": "quad",
}


def entry(function: str, arguments: list[Parameter]) -> str:
    """The C++ that lets the runtime call the kernel; `function` has its template arguments."""
    slots, buffers = [], 0
    for argument in arguments:
        if not argument.builtin:
            slots.append(f"Buffer<{buffers}>")
            buffers += 1
        elif argument.builtin in _MEMBERS:
            slots.append(f"Builtin<&Thread::{_MEMBERS[argument.builtin]}>")
        elif argument.builtin in _NUMBERS:
            slots.append(f"Scalar<Number::{_NUMBERS[argument.builtin]}>")
        else:
            raise ValueError(
                f"the simulator does not know the kernel argument [[{argument.builtin}]]"
            )
    return f"SIMULATOR_ENTRY(({function}), {', '.join(slots)})\n"
