"""Quantize a model's layers, each with its own values where they differ, and say what was kept.

MLX quantizes rows of a weight in groups; a config's `quantization` gives the values for all layers,
and under a layer's path those of one (mlx-lm's form, which drafters share).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import DFlashError, UsageError
from .recipes import recipe_predicate

MODES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "affine": ((64, 32, 128), (4, 2, 3, 5, 6, 8)),
    "mxfp4": ((32,), (4,)),
    "nvfp4": ((16,), (4,)),
    "mxfp8": ((32,), (8,)),
}
"""Group sizes and bits that MLX has for each mode, the usual first."""

SMALL_GROUP = 32
_USUAL = {"group_size": 64, "bits": 4, "mode": "affine"}


@dataclass(frozen=True)
class Quantization:
    """What a person asks for: values for all layers, a recipe by name, and layers to keep.

    Raises UsageError where MLX has no such quantization.
    """

    bits: int | None = None
    group_size: int | None = None
    mode: str = "affine"
    recipe: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        groups, widths = MODES[self.mode]
        for flag, value, known in (
            ("--q-bits", self.bits, widths),
            ("--q-group-size", self.group_size, groups),
        ):
            if value is not None and value not in known:
                raise UsageError(
                    f"{flag} is one of {', '.join(map(str, sorted(known)))} in mode {self.mode}; it"
                    f" is {value}."
                )
        if self.recipe and self.mode != "affine":
            raise UsageError(f"Recipes are affine: leave out --q-mode {self.mode}.")
        if self.recipe and self.bits:
            raise UsageError(f"{self.recipe} chooses the bits itself: leave out --q-bits.")

    @property
    def values(self) -> dict[str, Any]:
        """`group_size`, `bits` and `mode` of layers that have none of their own."""
        groups, widths = MODES[self.mode]
        return {
            "group_size": self.group_size or groups[0],
            "bits": self.bits or widths[0],
            "mode": self.mode,
        }

    @property
    def name(self) -> str:
        """As in the name of a folder: "4bit", "mxfp4" or "mixed_3_6"."""
        if self.recipe or self.mode != "affine":
            return self.recipe or self.mode
        return f"{self.values['bits']}bit"


@dataclass
class Quantized:
    """What was done: the config's `quantization`, layers by values, kept ones with the reason."""

    config: dict[str, Any]
    layers: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)


def quantize(
    model: nn.Module, wanted: Quantization, earlier: Mapping[str, Any] | None = None
) -> Quantized:
    """Quantize `model` in place, lazily. `earlier` is what its config says already.

    A layer whose width the group does not divide gets groups of 32, or stays as it is. The model's
    own wishes (mlx-lm's `quant_predicate`) hold where no recipe is named. Raises DFlashError
    where nothing can be quantized, UsageError where a glob matches no layer.
    """
    layers = quantizable(model)
    kept = kept_by_globs(layers, wanted.keep)
    done = Quantized(dict(earlier or wanted.values), kept=kept)
    wish = _wishes(model, wanted)

    def settings(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if path not in layers or path in kept:
            return False
        wished = wish(path, module)
        if not wished:
            kept[path] = "the model's own wish"
            return False
        own = _USUAL | wished if isinstance(wished, dict) else wanted.values
        width = module.weight.shape[-1]
        if width % own["group_size"] and own["mode"] == "affine" and width % SMALL_GROUP == 0:
            own["group_size"] = SMALL_GROUP
        if width % own["group_size"]:
            kept[path] = f"no group divides its width {width}"
            return False
        done.layers[f"{own['bits']} bits in groups of {own['group_size']} ({own['mode']})"] += 1
        if own != wanted.values or earlier:
            done.config[path] = own
        return own

    nn.quantize(model, **wanted.values, class_predicate=settings)
    if not done.layers:
        raise DFlashError("No layer of this model can be quantized so: choose a smaller group.")
    return done


def quantizable(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be quantized, by path; raises DFlashError if there is none."""
    layers = {path: m for path, m in model.named_modules() if hasattr(m, "to_quantized")}
    if not layers:
        raise DFlashError(
            "Every layer of this model is quantized already: convert the original, or leave out -q."
        )
    return layers


def kept_by_globs(paths: Iterable[str], globs: Sequence[str]) -> dict[str, str]:
    """Which of `paths` a glob keeps, and why; raises UsageError for a glob that matches none."""
    kept: dict[str, str] = {}
    for glob in globs:
        matched = [path for path in paths if _matches(path, glob)]
        if not matched:
            raise UsageError(f"--keep {glob} matches no layer; one is {next(iter(paths))}.")
        kept |= dict.fromkeys(matched, f"--keep {glob}")
    return kept


def _wishes(
    model: nn.Module, wanted: Quantization
) -> Callable[[str, nn.Module], bool | dict[str, Any]]:
    if wanted.recipe:
        return recipe_predicate(wanted.recipe, model, wanted.values["group_size"])
    return getattr(model, "quant_predicate", None) or (lambda path, module: True)


def _matches(path: str, glob: str) -> bool:
    """Whether `glob` is for a module: its whole path, or the end of it from a dot on."""
    return fnmatchcase(path, glob) or fnmatchcase(path, f"*.{glob}")


def bits_per_weight(model: nn.Module, nbytes: int) -> float:
    """True bits for each weight of `model` whose parameters take `nbytes`, scales included."""
    from mlx_lm.utils import get_total_parameters

    return 8 * nbytes / max(1, get_total_parameters(model))


def is_float(array: mx.array) -> bool:
    """Whether `array` holds numbers that a dtype may be chosen for."""
    return bool(mx.issubdtype(array.dtype, mx.floating))
