"""Which packaging of DFlash a checkpoint is, told from its config and its tensors' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DFlashError


def check_packaging(raw: Mapping[str, Any], names: Iterable[str], folder: object) -> None:
    """Pass z-lab's v1 layout; refuse every other by name, so that nothing loads in part.

    `raw` is `config.json`, `names` are the tensors. Raises `DFlashError`.
    """
    own = raw.get("dflash_config") or {}
    architectures = [str(name) for name in raw.get("architectures") or []]
    needs = _unsupported(raw, own, architectures, set(names))
    if needs:
        raise DFlashError(f"The drafter in {folder} needs {needs}, which is not supported yet.")
    if not own and "target_layer_ids" not in raw and "DFlashDraftModel" not in architectures:
        what = ", ".join(architectures) or str(raw.get("model_type", "of unknown architecture"))
        raise DFlashError(
            f"{folder} holds a language model ({what}), not a DFlash drafter: name the drafter's "
            "folder instead, or use this one as the model."
        )


def _unsupported(
    raw: Mapping[str, Any], own: Mapping[str, Any], architectures: list[str], names: set[str]
) -> str | None:
    """What a checkpoint of a later or foreign packaging needs, in words; None for v1."""
    second = any(name.startswith("candidate_selector.") or "_conv." in name for name in names)
    projector = own.get("projector_type", raw.get("projector_type"))
    if second or "DFlash2DraftModel" in architectures:
        return "DFlash 2 (convolutions and a candidate selector)"
    if "speculators_model_type" in raw:
        return f"the vLLM speculators packaging ({raw['speculators_model_type']})"
    if "markov_rank" in raw or any("DSpark" in name for name in architectures):
        return "the DeepSpec packaging (its rows predict one token further on)"
    if projector is not None:
        return f"SpecForge's projector_type '{projector}'"
    return None
