"""`train export`: the drafter for others, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model_folder import read_json
from ...training.checkpoint import checkpoints
from ...training.corpus import TRAIN, fingerprint, read_manifest
from ...training.export import Facts
from ...training.export import export as write_export
from ...training.settings import ExportSettings, gather
from .figures import read_figures
from .progress import say
from .stages import Stages


def export(stages: Stages, given: dict[str, Any]) -> None:
    """Write the folder, and say how to try it."""
    settings = gather(ExportSettings, stages.section("export"), given)
    drafter = settings.draft_model or stages.best()
    output = settings.output or stages.place.root / "export"
    target = stages.model or "smollm2-135m"
    recipe = stages.place.run / "settings.json"
    facts = Facts(
        target=target,
        data={k: v for k, v in read_manifest(stages.place.data).items() if k != "settings"},
        recipe=read_json(recipe) if recipe.exists() else {},
        figures=_figures_of(drafter, stages.place.figures),
        steps=_steps_done(stages.place.run),
    )
    name = settings.name or f"{Path(target).name}-dflash"
    answers = [stages.place.data / TRAIN] if (stages.place.data / TRAIN).exists() else []
    write_export(
        drafter,
        output,
        name,
        facts,
        stages.backend.device,
        bits=settings.bits,
        draft_tokens=settings.draft_tokens,
        answers=answers,
    )
    say(f"{output}: zlab (for vLLM, SGLang and the reference) and mlx (for dflash-mlx)")
    say(f"try it: dflash-mlx chat --model {target} --draft-model {output / 'mlx'}")


def _figures_of(drafter: Path, file: Path) -> list[dict[str, Any]]:
    """What was measured of this very drafter, and of no earlier or other one."""
    same = fingerprint(drafter)
    return [row for row in read_figures(file) if row.get("drafter") == same]


def _steps_done(run_folder: Path) -> int | None:
    last = checkpoints(run_folder)[-1:]
    return int(read_json(last[0] / "state.json")["step"]) if last else None
