"""Mixed recipes: more bits for the layers that suffer most, by mlx-lm's names and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.nn as nn

from ..errors import DFlashError, UsageError

Wish = Callable[[str, nn.Module], bool | dict[str, Any]]


def recipe_predicate(recipe: str, model: nn.Module, group_size: int) -> Wish:
    """What recipe `recipe` wants for each layer, in groups of `group_size`.

    Raises UsageError for an unknown name, DFlashError where it would give no layer more bits.
    """
    from mlx_lm.convert import QUANT_RECIPES, mixed_quant_predicate_builder

    if recipe not in QUANT_RECIPES:
        raise UsageError(f"--recipe is one of {', '.join(QUANT_RECIPES)}; it is {recipe}.")
    try:
        wish = cast(Wish, mixed_quant_predicate_builder(recipe, model, group_size))
    except ValueError:
        raise _no_match(recipe) from None
    quantizable = [(p, m) for p, m in model.named_modules() if hasattr(m, "to_quantized")]
    wishes = [wish(path, module) for path, module in quantizable]
    if len({wished["bits"] for wished in wishes if isinstance(wished, dict)}) < 2:
        raise _no_match(recipe)
    return wish


def _no_match(recipe: str) -> DFlashError:
    return DFlashError(
        f"{recipe} matches no layer of this model, which has no down_proj: use --q-bits instead."
    )
