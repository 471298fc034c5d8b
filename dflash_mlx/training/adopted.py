"""A drafter to go on from: its `config.json` as a new one's would be.

Published configs leave `block_size` out or have it in `dflash_config`, and copy dimensions of the
target. The loader asks the weights; what it found is written out here, where all else looks for it.
"""

from __future__ import annotations

from typing import Any

from ..convert.drafter import with_true_dimensions
from ..drafter import DrafterConfig, load_drafter
from ..errors import DFlashError, UsageError
from ..hub.resolve import resolve
from ..model_folder import read_json
from ..quantized import KEYS
from ..target.model import Target
from .architecture import as_second
from .second import ARCHITECTURE
from .settings import RunSettings

_FIRST = "DFlashDraftModel"


def adopted_config(
    settings: RunSettings, target: Target, thinking: bool | None = None
) -> dict[str, Any]:
    """The config of the drafter that `--init` names, by the settings.

    `thinking` is the mode of the conversations, if they say: what it learns last is what it serves.
    Raises DFlashError where it cannot be trained on, UsageError where it would need other weights.
    """
    name = settings.init
    folder = resolve(name, "drafter").folder
    raw = read_json(folder / "config.json")
    if raw.get("architectures") not in ([_FIRST], [ARCHITECTURE]):
        raise DFlashError(f"{name} is no DFlash drafter that can be trained on.")
    made = load_drafter(folder, lazy=True).config
    if made.drafts_from_anchor or made.rows_in_doubt:
        raise DFlashError(
            f"Row j of {name} drafts the token at anchor + j + 1, or may: a run trains it for"
            " anchor + j, the one reading that z-lab's packaging has. Choose another --init."
        )
    if made.own_head:
        raise DFlashError(
            f"{name} has a head of its own, which a run does not train: choose another --init."
        )
    config = _written_out(raw, made)
    config["num_target_layers"] = made.num_target_layers or target.num_layers
    _check_shape(config, settings)
    if settings.block_size is not None:
        config["block_size"] = settings.block_size  # no weight depends on it
    if thinking is not None:
        config["enable_thinking"] = thinking
    if settings.dflash2 and made.second is None:
        return as_second(config, settings)
    return config


def _written_out(raw: dict[str, Any], made: DrafterConfig) -> dict[str, Any]:
    """All that a new drafter's config has, in the same places."""
    raw = {key: value for key, value in raw.items() if key not in KEYS}  # it is dequantized
    own = {**(raw.get("dflash_config") or {})}
    own.pop("block_size", None)
    own["mask_token_id"] = made.mask_token_id
    own["target_layer_ids"] = list(made.target_layer_ids)
    if made.second is not None:
        own["conv_kernel_size"] = made.second.kernel_size
        own["conv_group_size"] = made.second.group_size
        own["selector_rank"] = made.second.rank
        own["selector_top_k"] = made.second.top_k
    return {
        **with_true_dimensions(raw, made),
        "architectures": [_FIRST if made.second is None else ARCHITECTURE],
        "vocab_size": made.vocab_size,
        "dflash_config": own,
    }


def _check_shape(config: dict[str, Any], settings: RunSettings) -> None:
    """Raise UsageError where the settings ask for another shape than the weights have."""
    own = config["dflash_config"]
    shape = {
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "intermediate_size": config["intermediate_size"],
        "taps": own["target_layer_ids"],
        "mask_token": own["mask_token_id"],
        "selector_rank": own.get("selector_rank"),
    }
    for name, has in shape.items():
        asked = getattr(settings, name)
        if None not in (asked, has) and asked != has:
            raise UsageError(
                f"{settings.init} was made with {name} {has}, and {asked} would need other weights:"
                f" leave --{name.replace('_', '-')} out, or begin with another --init."
            )
