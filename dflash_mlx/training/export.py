"""A trained drafter as others take it: z-lab's packaging, an MLX folder, and a model card.

    zlab/   bfloat16: the public reference, vLLM and SGLang read it, and so does this program
    mlx/    for this program: quantized if asked for, with a draft vocabulary if asked for

The folder is whole or absent: an interrupted export leaves what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from .._version import __version__
from ..convert.conversion import Wishes, open_source, prepare, write
from ..convert.drafter import open_drafter, with_true_dimensions
from ..convert.quantize import Quantization
from ..drafter import DrafterConfig
from ..hub.store import atomic_folder
from .checkpoint import write_drafter
from .initial import flat


@dataclass(frozen=True)
class Facts:
    """What the card tells: the target's name, the data, the recipe, and figures measured.

    `base` is the target's name on the hub, if it has one; data and recipe are left out if empty.

    `figures` has a row a set, temperature and number of rows: `{"set": ..., "temperature": ...,
    "rows": ..., "acceptance_length": ..., "by_position": ..., ...}`, see `ServedSet.to_json`.
    """

    target: str
    data: Mapping[str, Any]
    recipe: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]]
    steps: str | None = None
    base: str | None = None


def export(
    drafter: Path,
    output: Path,
    name: str,
    facts: Facts,
    device: str,
    *,
    bits: int | None = None,
    draft_tokens: int | None = None,
    answers: Sequence[Path] = (),
) -> None:
    """Write `output`, which must not exist yet, from the drafter in the folder `drafter`.

    `draft_tokens` most frequent tokens of `answers`, files of conversations, become the draft
    vocabulary of the MLX folder. A drafter from elsewhere may be in any packaging that loads, and
    is dequantized if need be. Raises DFlashError.
    """
    source = open_drafter(drafter, for_zlab=True)
    made: DrafterConfig = source.model.config
    config = with_true_dimensions(source.config, made)
    weights = flat(source.model.parameters())
    wishes = Wishes(
        quantization=Quantization(bits=bits) if bits else None,
        draft_vocab=draft_tokens,
        answers=answers,
    )
    with atomic_folder(output) as new:
        zlab, ours = new / "zlab", new / "mlx"
        zlab.mkdir()
        ours.mkdir()
        write_drafter(zlab, config, weights, mx.bfloat16)
        write(prepare(open_source(zlab), wishes, device), ours, lambda done, total: None)
        held = f"in {bits} bits" if bits else "in bfloat16"
        if draft_tokens:
            held += f", and it drafts from its {draft_tokens:,} most frequent tokens alone"
        for folder, how in ((zlab, "in bfloat16"), (ours, held)):
            card = model_card(name, made, facts, how)
            (folder / "README.md").write_text(card, encoding="utf-8")


def model_card(name: str, config: DrafterConfig, facts: Facts, held: str) -> str:
    """The README of an exported drafter, in Markdown; `held` is how the folder has its weights."""
    of = f" of {config.num_target_layers}" if config.num_target_layers else ""
    lines = [
        "---",
        *([f"base_model: {facts.base}"] if facts.base else []),
        "tags: [dflash, mlx, speculative-decoding]",
        "---",
        f"# {name}",
        "",
        f"A DFlash drafter (arXiv 2602.06036) for `{facts.target}`: it drafts blocks of tokens"
        " that the target verifies, so answers are the target's own, only faster. Trained with"
        f" dflash-mlx {__version__}.",
        "",
        f"{config.num_layers} layers, blocks of {config.block_size} rows, taps"
        f" {', '.join(map(str, config.target_layer_ids))}{of}, mask token {config.mask_token_id}.",
        "",
        "## Figures",
        "",
        *_figures(facts.figures, held),
        "",
        *_listed("Data", facts.data),
        *_listed("Recipe", {**facts.recipe, "steps done": facts.steps}),
    ]
    return "\n".join(lines)


def _figures(figures: Sequence[Mapping[str, Any]], held: str) -> list[str]:
    if not figures:
        return ["Not evaluated yet: `dflash-mlx train eval` measures, then export again."]
    lines = [
        f"Measured of the drafter before its export: this folder has it {held}.",
        "",
        "Acceptance length: mean accepted drafts a round, and one. By position: the share of"
        " rounds that accepted at least so many. Speeds are medians over answers, decoded with and"
        " without the drafter in turns; so is times plain, of their ratios.",
        "",
        "| set | temperature | rows | acceptance length | by position | tokens/s | plain tokens/s"
        " | times plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        shares = " ".join(f"{share:.2f}".lstrip("0") for share in row["by_position"])
        speeds = [row.get(name) for name in ("tokens_per_second", "plain_tokens_per_second")]
        cells = [
            f"{row['set']}, looping answers" if row.get("looping") else row["set"],
            f"{row['temperature']:g}",
            str(row["rows"]),
            f"{row['acceptance_length']:.2f}",
            shares,
            *(f"{speed:.1f}" if speed else "–" for speed in speeds),
            f"{row['times_plain']:.2f}" if row.get("times_plain") else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _listed(title: str, values: Mapping[str, Any]) -> list[str]:
    """A section of those values that are known, none if there is none."""
    known = {key.replace("_", " "): value for key, value in values.items() if value is not None}
    lines = [f"- {key}: {value}" for key, value in known.items()]
    return [f"## {title}", "", *lines, ""] if lines else []
