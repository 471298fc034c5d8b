"""The published pairs: which drafter was trained for which target, in any of its quantizations.

Where the table is from (read in November 2026): drafters from z-lab's collections `dflash` and
`dflash-2` on the hub and the README of its `dflash` 0.1.0; shapes from the targets' configs. The
hub rounds the drafters' parameters. Sizes are computed from parameter counts: estimates, until a
model is on the machine.

Left out: Kimi, MiniMax, GLM and Qwen3.5 beyond 35B (few Macs hold them); Gemma 4 12B, named in
that README, whose repository could not be confirmed; drafters of others in other packagings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .fit import CacheShape, Machine, Need, affine_bytes, this_machine

DRAFTER_CACHE = CacheShape(layers=5, heads=8, head_dim=128)
"""Of the drafters for 4B and 8B targets; others are taken to be alike."""


@dataclass(frozen=True)
class KnownPair:
    """A published target and the drafter that was trained for it.

    `name` is the target's, without publisher and quantization; `model` a repository of it that
    MLX loads, in 4 bits. Parameters are in billions. `thinking` is the mode that the drafter was
    trained in, None where nobody says: the other mode costs most of the acceptance.
    """

    name: str
    model: str
    drafter: str
    parameters: float
    draft_parameters: float
    cache: CacheShape
    thinking: bool | None = None
    also: tuple[str, ...] = ()

    @property
    def model_bytes(self) -> int:
        """Size of the target in 4 bits, an estimate."""
        return affine_bytes(self.parameters * 1e9)

    @property
    def drafter_bytes(self) -> int:
        """Size of the drafter's files, in bfloat16, an estimate."""
        return round(self.draft_parameters * 2e9)

    def need(self, machine: Machine) -> Need:
        """What the pair would take on `machine`, the target in 4 bits."""
        width = machine.float_bytes
        drafter = round(self.draft_parameters * 1e9 * width)
        cached = self.cache.token_bytes(width) + DRAFTER_CACHE.token_bytes(width)
        return Need(self.model_bytes + drafter, cached)


# The best first: newer before older, then larger before smaller.
# fmt: off
PAIRS = (
    KnownPair("Qwen3.8-27B", "mlx-community/Qwen3.8-27B-4bit",
              "z-lab/Qwen3.8-27B-DFlash2", 27, 2, CacheShape(16, 4, 256)),
    KnownPair("Muse-Glimmer-30B", "mlx-community/Muse-Glimmer-30B-4bit",
              "z-lab/Muse-Glimmer-30B-DFlash2", 30, 3, CacheShape(13, 2, 128)),
    KnownPair("Qwen3.6-35B-A3B", "mlx-community/Qwen3.6-35B-A3B-4bit",
              "z-lab/Qwen3.6-35B-A3B-DFlash", 35, 0.4, CacheShape(10, 2, 256)),
    KnownPair("Qwen3.6-27B", "mlx-community/Qwen3.6-27B-4bit",
              "z-lab/Qwen3.6-27B-DFlash", 27, 2, CacheShape(16, 4, 256)),
    KnownPair("gemma-4-31b-it", "mlx-community/gemma-4-31b-it-4bit",
              "z-lab/gemma-4-31B-it-DFlash", 31, 2, CacheShape(10, 4, 512)),
    KnownPair("gemma-4-26b-a4b-it", "mlx-community/gemma-4-26b-a4b-it-4bit",
              "z-lab/gemma-4-26B-A4B-it-DFlash", 26, 0.4, CacheShape(5, 2, 512)),
    KnownPair("Qwen3-Coder-Next", "mlx-community/Qwen3-Coder-Next-4bit",
              "z-lab/Qwen3-Coder-Next-DFlash", 80, 0.5, CacheShape(12, 2, 256)),
    KnownPair("Qwen3.5-35B-A3B", "mlx-community/Qwen3.5-35B-A3B-4bit",
              "z-lab/Qwen3.5-35B-A3B-DFlash", 35, 0.5, CacheShape(10, 2, 256)),
    KnownPair("Qwen3.5-27B", "mlx-community/Qwen3.5-27B-4bit",
              "z-lab/Qwen3.5-27B-DFlash", 27, 2, CacheShape(16, 4, 256)),
    KnownPair("Qwen3.5-9B", "mlx-community/Qwen3.5-9B-MLX-4bit",
              "z-lab/Qwen3.5-9B-DFlash", 9, 1, CacheShape(8, 4, 256)),
    KnownPair("Qwen3.5-4B", "mlx-community/Qwen3.5-4B-MLX-4bit",
              "z-lab/Qwen3.5-4B-DFlash", 4, 0.5, CacheShape(8, 4, 256)),
    KnownPair("gpt-oss-120b", "mlx-community/gpt-oss-120b-MXFP4-Q4",
              "z-lab/gpt-oss-120b-DFlash", 117, 0.8, CacheShape(18, 8, 64)),
    KnownPair("gpt-oss-20b", "mlx-community/gpt-oss-20b-MXFP4-Q4",
              "z-lab/gpt-oss-20b-DFlash", 21, 0.8, CacheShape(12, 8, 64)),
    KnownPair("Qwen3-Coder-30B-A3B-Instruct", "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
              "z-lab/Qwen3-Coder-30B-A3B-DFlash", 30.5, 0.5, CacheShape(48, 4, 128)),
    KnownPair("Qwen3-8B", "mlx-community/Qwen3-8B-4bit",
              "z-lab/Qwen3-8B-DFlash-b16", 8.2, 1, CacheShape(36, 8, 128), thinking=False),
    KnownPair("Llama-3.1-8B-Instruct", "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
              "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", 8, 1, CacheShape(32, 8, 128),
              also=("Meta-Llama-3.1-8B-Instruct",)),
    KnownPair("Qwen3-4B", "mlx-community/Qwen3-4B-4bit",
              "z-lab/Qwen3-4B-DFlash-b16", 4, 0.5, CacheShape(36, 8, 128), thinking=False),
)
# fmt: on

_QUANTIZATION = re.compile(
    r"""(?ix) (?: [-_.] (?:
        mlx | gguf-mlx | \d+(?:[._]\d+)?-?bits? | (?:b?f|fp|float|bfloat) (?:8|16|32)
        | mxfp[48] | nvfp4 | q\d(?:_[0-9a-z]+)* | int[48] | w\d+a\d+
        | dwq | awq | gptq | optiq | oq\d\w* | mixed(?:[-_]\d)* | dynamic | hi
        | gs?\d+ | v\d+ | \d{6,8}
    ) )+ $"""
)
"""What publishers add to a name for a quantization: "-4bit", "-MLX-8bit", "-4bit-DWQ-053125"."""


def base_name(name: str) -> str:
    """A model's own name in small letters: no folder or publisher before it, no quantization."""
    return _QUANTIZATION.sub("", name.rstrip("/").rpartition("/")[2]).lower()


def known_pair(name: str) -> KnownPair | None:
    """The pair whose target `name` is, in any quantization and from any publisher."""
    wanted = base_name(name)
    for pair in PAIRS:
        if wanted in (known.lower() for known in (pair.name, *pair.also)):
            return pair
    return None


def pair_of_drafter(name: str) -> KnownPair | None:
    """The pair whose drafter `name` is, from any publisher, in any quantization."""
    wanted = base_name(name)
    return next((pair for pair in PAIRS if base_name(pair.drafter) == wanted), None)


def best_pair(machine: Machine) -> KnownPair | None:
    """The best known pair that fits `machine`; None if none does."""
    return next((pair for pair in PAIRS if pair.need(machine).fits(machine)), None)


def suggestion(machine: Machine | None = None) -> str | None:
    """A line that names the best known pair for this machine, and the command that gets it."""
    pair = best_pair(machine or this_machine())
    if pair is None:
        return None
    size = (pair.model_bytes + pair.drafter_bytes) / 1e9
    return (
        f"{pair.name} is the best known pair for this machine's memory"
        f" (about {size:.0f} GB): `dflash-mlx models pull {pair.name}` gets it."
    )
