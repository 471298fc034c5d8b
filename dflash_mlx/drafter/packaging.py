"""Which packaging of DFlash a checkpoint is, and what its `config.json` says in z-lab's words.

z-lab's config is the one language that `config.py` reads and the converter writes. Two words are
added to its `dflash_config`: `sample_from_anchor` (as vLLM speculators call it: row j predicts the
token at anchor + j + 1) and `rows_in_doubt` (nobody says which; the pair tries both).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import DFlashError
from .speculators import from_speculators


class Packaging(Enum):
    """The layouts that load."""

    ZLAB = "z-lab"
    SPECULATORS = "vLLM speculators"
    DEEPSPEC = "DeepSpec"


@dataclass(frozen=True)
class Packaged:
    """A checkpoint's packaging, its config in z-lab's words, and whether it is DFlash 2."""

    packaging: Packaging
    config: dict[str, Any]
    second: bool


def unpack(raw: Mapping[str, Any], names: Iterable[str], folder: object) -> Packaged:
    """Tell the layout from `raw`, the `config.json`, and `names`, the tensors'.

    Any other than these is refused by name, so that nothing loads in part. Raises `DFlashError`.
    """
    second = any(map(_is_second, names))
    if "speculators_model_type" in raw:
        config = from_speculators(raw)
        return Packaged(Packaging.SPECULATORS, config, second or _named_second(config))
    own = raw.get("dflash_config")
    own = own if isinstance(own, Mapping) else {}
    if needs := _unsupported(raw, own):
        raise DFlashError(f"The drafter in {folder} needs {needs}, which is not supported yet.")
    architectures = _architectures(raw)
    if any("DSpark" in name for name in architectures) or "markov_rank" in {**raw, **own}:
        config = _from_deepspec(raw, own, architectures)
        return Packaged(Packaging.DEEPSPEC, config, second or _named_second(raw))
    known = second or "DFlashDraftModel" in architectures or _named_second(raw)
    if not own and "target_layer_ids" not in raw and not known:
        what = ", ".join(architectures) or str(raw.get("model_type", "of unknown architecture"))
        raise DFlashError(
            f"{folder} holds a language model ({what}), not a DFlash drafter: name the drafter's "
            "folder instead, or use this one as the model."
        )
    config = dict(raw)
    if own.get("shift_label"):  # SpecForge's: trained so for another head, and ignored by its own
        config["dflash_config"] = {"rows_in_doubt": True, **own}
    return Packaged(Packaging.ZLAB, config, second or _named_second(raw))


def _architectures(raw: Mapping[str, Any]) -> list[str]:
    listed = raw.get("architectures")
    return [str(name) for name in listed] if isinstance(listed, list) else []


def _named_second(raw: Mapping[str, Any]) -> bool:
    return "DFlash2DraftModel" in _architectures(raw)


def _is_second(name: str) -> bool:
    """Whether a tensor is one that DFlash 2 added."""
    return (
        name.startswith("candidate_selector.") or "attention_conv." in name or "mlp_conv." in name
    )


def _unsupported(raw: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """What a checkpoint needs that this program does not have, in words."""
    both = {**raw, **own}
    if both.get("projector_type") is not None:
        return f"SpecForge's projector_type '{both['projector_type']}'"
    if both.get("markov_rank"):
        return f"a Markov head of rank {both['markov_rank']} (DSpark)"
    return None


def _from_deepspec(
    raw: Mapping[str, Any], own: Mapping[str, Any], architectures: list[str]
) -> dict[str, Any]:
    """z-lab's words for DeepSpec's config, which has the ids at the top and no word on its rows.

    `Qwen3DSparkModel` reads row j as the token at anchor + j + 1, where other names do not; but
    checkpoints change their names when they are packed again, so the pair tries both.
    """
    named = any("DSpark" in name for name in architectures)
    dropped = ("markov_rank", "markov_head_type", "auto_map", "target_layer_ids", "mask_token_id")
    config = {key: value for key, value in raw.items() if key not in dropped}
    ids = {key: raw[key] for key in ("target_layer_ids", "mask_token_id") if key in raw}
    rest = {key: value for key, value in own.items() if not key.startswith("markov_")}
    rows = {"sample_from_anchor": named, "rows_in_doubt": True}
    config["architectures"] = ["DFlash2DraftModel" if _named_second(raw) else "DFlashDraftModel"]
    config["dflash_config"] = {**rows, **ids, **rest}
    return config


_BORROWED = frozenset(
    f"{name}.weight" for name in ("embed_tokens", "lm_head", "verifier_norm", "verifier_lm_head")
)


def is_borrowed(name: str) -> bool:
    """Whether a tensor is a copy of the target's, which serves itself, or guesses confidence only.

    z-lab's packaging has none of them, so there they are refused as unexpected.
    """
    return name in _BORROWED or name.startswith("confidence_head.")


def check_borrowed(
    shapes: Mapping[str, tuple[int, ...]], hidden_size: int, vocab_size: int, rows: int | None
) -> None:
    """Refuse copies of the target's embedding and head that contradict the config.

    `rows` is the size of a reduced draft vocabulary, which a head may be cut to.
    """
    for name in ("embed_tokens.weight", "lm_head.weight"):
        heights = {vocab_size, rows} if name.startswith("lm_head") else {vocab_size}
        if name in shapes and not (shapes[name][0] in heights and shapes[name][-1] == hidden_size):
            raise DFlashError(
                f"The drafter's {name} is {list(shapes[name])}, which contradicts its hidden size "
                f"{hidden_size} and its vocabulary of {vocab_size} tokens."
            )
