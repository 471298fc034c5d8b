"""vLLM speculators' config (`speculators` 0.9.0) in z-lab's words.

It nests the layers' dimensions in `transformer_layer_config`, counts hidden states with the
embedding as number 0 (so its tap ids are z-lab's + 1), and may reduce the vocabulary (see
`draft_vocab.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DFlashError

_FIRST, _SECOND = "DFlashDraftModel", "DFlash2DraftModel"
_ARCHITECTURES = {"dflash": _FIRST, "dflash2": _SECOND, "dspark": _FIRST}
_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def from_speculators(raw: Mapping[str, Any]) -> dict[str, Any]:
    """z-lab's config of the same drafter. Raises `DFlashError` for what it cannot say."""
    kind = raw["speculators_model_type"]
    if kind not in _ARCHITECTURES:
        raise DFlashError(
            f"The drafter is a vLLM speculator of kind '{kind}', which is not DFlash: known are "
            f"{', '.join(_ARCHITECTURES)}."
        )
    if rank := raw.get("markov_rank", 256 if kind == "dspark" else 0):
        raise DFlashError(
            f"The drafter needs a Markov head of rank {rank} (DSpark), which is not supported yet."
        )
    layers = raw.get("transformer_layer_config")
    if not isinstance(layers, Mapping):
        raise DFlashError(
            "The drafter's config.json lacks transformer_layer_config: take it from the original "
            "checkpoint."
        )
    _check_hidden_size(raw, layers)
    own: dict[str, Any] = {
        "target_layer_ids": _taps(raw),
        "mask_token_id": raw.get("mask_token_id"),
        # The class of that kind has the default where the file leaves it out.
        "sample_from_anchor": raw.get("sample_from_anchor", kind == "dspark"),
        **{key: raw[key] for key in _SELECTOR if key in raw},
    }
    config = {**layers, "architectures": [_ARCHITECTURES[kind]], "dflash_config": own}
    if "block_size" in raw:
        config["block_size"] = raw["block_size"]
    config.pop("is_causal", None)
    if raw.get("sliding_window_non_causal", kind == "dflash2"):
        config["is_causal"] = False
    rope = layers.get("rope_parameters")
    if isinstance(rope, Mapping) and isinstance(rope.get("sliding_attention"), Mapping):
        config["rope_parameters"] = dict(rope["sliding_attention"])  # all layers share that one
    if verifier := _verifier(raw):
        config["target_model"] = verifier
    return config


def _taps(raw: Mapping[str, Any]) -> list[int]:
    ids = raw.get("aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise DFlashError(
            "The drafter's config.json lacks aux_hidden_state_layer_ids: take it from the original "
            "checkpoint."
        )
    if 0 in ids:
        raise DFlashError(
            "The drafter's aux_hidden_state_layer_ids hold 0, the embedding itself, which cannot be"
            " tapped."
        )
    return [number - 1 for number in ids]


def _check_hidden_size(raw: Mapping[str, Any], layers: Mapping[str, Any]) -> None:
    of_target, own = raw.get("target_hidden_size"), layers.get("hidden_size")
    if of_target is not None and of_target != own:
        raise DFlashError(
            f"The drafter's target_hidden_size {of_target} differs from its own hidden_size {own}, "
            "which is not supported."
        )


def _verifier(raw: Mapping[str, Any]) -> str | None:
    """The name of the target that it was trained for."""
    stated = raw.get("speculators_config")
    verifier = stated.get("verifier") if isinstance(stated, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return str(name) if name else None
