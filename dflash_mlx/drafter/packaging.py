"""Which packaging of DFlash a checkpoint is, told from its config and its tensors' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from ..errors import DFlashError


class Packaging(Enum):
    """The layouts that load."""

    DFLASH = "z-lab's DFlash"
    DFLASH2 = "z-lab's DFlash 2"


def packaging_of(raw: Mapping[str, Any], names: Iterable[str], folder: object) -> Packaging:
    """Which layout this is; any other is refused by name, so that nothing loads in part.

    `raw` is `config.json`, `names` are the tensors. Raises `DFlashError`.
    """
    own = raw.get("dflash_config")
    own = own if isinstance(own, Mapping) else {}
    listed = raw.get("architectures")
    architectures = [str(name) for name in listed] if isinstance(listed, list) else []
    needs = _unsupported(raw, own, architectures)
    if needs:
        raise DFlashError(f"The drafter in {folder} needs {needs}, which is not supported yet.")
    if "DFlash2DraftModel" in architectures or any(map(_is_second, names)):
        return Packaging.DFLASH2
    if not own and "target_layer_ids" not in raw and "DFlashDraftModel" not in architectures:
        what = ", ".join(architectures) or str(raw.get("model_type", "of unknown architecture"))
        raise DFlashError(
            f"{folder} holds a language model ({what}), not a DFlash drafter: name the drafter's "
            "folder instead, or use this one as the model."
        )
    return Packaging.DFLASH


def _is_second(name: str) -> bool:
    """Whether a tensor is one that DFlash 2 added."""
    return (
        name.startswith("candidate_selector.") or "attention_conv." in name or "mlp_conv." in name
    )


def _unsupported(
    raw: Mapping[str, Any], own: Mapping[str, Any], architectures: list[str]
) -> str | None:
    """What a checkpoint of a foreign packaging needs, in words; None for z-lab's."""
    projector = own.get("projector_type", raw.get("projector_type"))
    if "speculators_model_type" in raw:
        return f"the vLLM speculators packaging ({raw['speculators_model_type']})"
    if "markov_rank" in raw or any("DSpark" in name for name in architectures):
        return "the DeepSpec packaging (its rows predict one token further on)"
    if projector is not None:
        return f"SpecForge's projector_type '{projector}'"
    return None
