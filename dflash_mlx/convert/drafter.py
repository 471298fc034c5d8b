"""Take a drafter for conversion: any packaging that loads becomes z-lab's, with MLX's key.

The folder that is written holds z-lab's `config.json` and tensors, and where they say more than
z-lab's own readers know: `quantization`, `draft_vocab.json`, an `lm_head` over that vocabulary, and
`sample_from_anchor` (see `drafter/packaging.py`). `for_zlab` leaves all of that out again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlx_lm.utils import dequantize_model

from ..drafter import Drafter, DrafterConfig, load_drafter
from ..drafter.draft_vocab import FILE
from ..drafter.packaging import Packaging, unpack
from ..errors import DFlashError
from ..model_folder import read_json
from ..quantized import KEYS
from .source import Source, read_headers

_OURS = (*KEYS, "target_model")
_ROWS = ("sample_from_anchor", "rows_in_doubt")


def open_drafter(folder: Path, *, for_zlab: bool = False) -> Source:
    """The drafter in `folder`, nothing of it computed; `for_zlab` as z-lab's readers take it.

    Raises DFlashError.
    """
    infos = read_headers(folder)
    packaged = unpack(read_json(folder / "config.json"), infos, folder)
    config = packaged.config
    if "quantization" in config and not for_zlab:
        raise DFlashError(
            f"The drafter in {folder} is quantized already: convert the original drafter."
        )
    drafter = load_drafter(folder, lazy=True)
    nbytes = sum(info.nbytes for info in infos.values())
    source = Source(folder, drafter, config, len(infos), nbytes)
    if packaged.packaging is not Packaging.ZLAB:
        source.config = with_true_dimensions(config, drafter.config)
        source.notes.append(f"the packaging was that of {packaged.packaging.value}")
        if drafter.config.rows_in_doubt:
            source.notes.append(
                "what its rows predict is not stated: each loading tries both readings, or"
                " --target settles it now"
            )
    if for_zlab:
        _leave_to_the_target(source, drafter)
    return source


def settle(source: Source, drafts_from_anchor: bool) -> None:
    """Write down what the rows of a drafter predict, as one prompt has told."""
    own = {**source.config["dflash_config"], "sample_from_anchor": drafts_from_anchor}
    own.pop("rows_in_doubt", None)
    source.config["dflash_config"] = own
    source.notes = [note for note in source.notes if "not stated" not in note]


def write_config(source: Source, folder: Path) -> None:
    """Write `config.json` as it was, with what conversion added."""
    text = json.dumps(source.config, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def with_true_dimensions(config: dict[str, Any], made: DrafterConfig) -> dict[str, Any]:
    """The config with the dimensions of the weights, which other readers take from here."""
    types = {"layer_types": list(made.layer_types)} if "layer_types" in config else {}
    return (
        config
        | types
        | {
            "hidden_size": made.hidden_size,
            "num_hidden_layers": made.num_layers,
            "num_attention_heads": made.num_heads,
            "num_key_value_heads": made.num_kv_heads,
            "head_dim": made.head_dim,
            "intermediate_size": made.intermediate_size,
            "rope_theta": made.rope.theta,
            "block_size": made.block_size,
        }
    )


def _leave_to_the_target(source: Source, drafter: Drafter) -> None:
    """Leave out what z-lab's packaging cannot say, and refuse where drafts would change places."""
    config = drafter.config
    if config.drafts_from_anchor or config.rows_in_doubt:
        raise DFlashError(
            "z-lab's packaging has no word for rows that predict the token at anchor + j + 1, as"
            " this drafter's may: its readers would take every draft for the next one."
        )
    if "quantization" in source.config:
        source.model = dequantize_model(drafter)
        source.notes.append("dequantized: what rounding took does not come back")
    if config.own_head:
        del source.model["lm_head"]
        source.notes.append("its own head is left out: z-lab's readers use the target's")
    if config.draft_vocab is not None:
        source.left_out = (FILE,)
        source.notes.append("its draft vocabulary is left out: z-lab's readers draft all tokens")
    for key in _OURS:
        source.config.pop(key, None)
    own = source.config.get("dflash_config", {})
    source.config["dflash_config"] = {k: v for k, v in own.items() if k not in _ROWS}
