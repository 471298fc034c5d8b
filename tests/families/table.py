"""README's table of what runs, made of the matrix that the tests of this folder run.

`python -m tests.families.table` writes it into README.md; a test tells when it has to be run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflash_mlx.convert.gguf_architectures import ARCHITECTURES
from dflash_mlx.errors import UsageError
from dflash_mlx.target.caches import Offset, SlidingCache, StateCache, kind
from dflash_mlx.target.kv_bits import CHOICES, group_size
from tests.families.models import BITS, DRAFTERS, FAMILIES, build, family_target

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- the matrix of tests/families -->\n", "<!-- until here -->\n"
CACHES = {Offset: "attention", SlidingCache: "sliding windows", StateCache: "recurrent layers"}
GGUF = {"qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
"""GGUF's names of families, where mlx-lm's are others."""


def table() -> str:
    """The table, in Markdown."""
    widths = " and ".join(str(bits) for bits in BITS if bits)
    drafters = ", ".join(DRAFTERS)
    return "\n".join(
        [
            "| target (`model_type`) | caches that are rolled back | `--kv-bits` | from GGUF |",
            "| --- | --- | --- | --- |",
            *_rows(),
            "",
            f"Tested unquantized and in {widths} bits, greedy and sampled, with these drafters:",
            f"{drafters}.",
            "",
        ]
    )


def updated(readme: str) -> str:
    """The text of README.md with the table as it is now."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def _rows() -> Iterator[str]:
    imported = {GGUF.get(name, name) for name in ARCHITECTURES}
    for family in sorted(FAMILIES):
        found = {type(kind(entry)) for entry in family_target(family).make_cache()}
        caches = ", ".join(words for cache, words in CACHES.items() if cache in found)
        gguf = "yes" if family in imported else ""
        yield f"| `{family}` | {caches} | {_kv_bits(family)} | {gguf} |"


def _kv_bits(family: str) -> str:
    """Whether keys and values may be quantized; heads as wide as real ones."""
    model = build(family, head_dim=32, num_attention_heads=1)
    try:
        for bits in CHOICES:
            group_size(model, bits)
    except UsageError:
        return ""
    return "yes"


if __name__ == "__main__":
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
