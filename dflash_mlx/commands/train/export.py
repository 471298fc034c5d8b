"""`train export`: the drafter for others, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...hub.embedded import NAME
from ...model_folder import read_json
from ...training.checkpoint import DRAFTER, checkpoints
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
    drafter, output = _ends(stages, settings)
    target = stages.model or NAME
    facts = _facts(stages, drafter)
    write_export(
        drafter,
        output,
        settings.name or f"{Path(target).name}-dflash",
        facts,
        stages.backend.device,
        bits=settings.bits,
        draft_tokens=settings.draft_tokens,
        answers=_answers(stages) if settings.draft_tokens else (),
    )
    say(f"{output}: zlab (for vLLM, SGLang and the reference) and mlx (for dflash-mlx)")
    say(f"try it: dflash-mlx chat --model {target} --draft-model {output / 'mlx'}")


def export_once(stages: Stages) -> None:
    """Export where that was not done yet; an export that the run went past is told."""
    settings = gather(ExportSettings, stages.section("export"))
    drafter, output = _ends(stages, settings)
    if not output.exists():
        export(stages, {})
    elif _written(drafter) > _written(output / "zlab"):
        say(f"note: {output} is older than {drafter}: remove it, and the same command exports anew")


def _ends(stages: Stages, settings: ExportSettings) -> tuple[Path, Path]:
    """The drafter that is exported, and the folder that it is exported to."""
    drafter = settings.draft_model or stages.best()
    return drafter, settings.output or stages.place.root / "export"


def _written(folder: Path) -> float:
    config = folder / "config.json"
    return config.stat().st_mtime if config.exists() else 0.0


def _answers(stages: Stages) -> list[Path]:
    """The files of the answers that the run was trained on. Raises UsageError where one is gone."""
    files = [path / TRAIN if path.is_dir() else path for path in stages.data]
    for file in files:
        if not file.exists():
            raise UsageError(
                f"--draft-tokens counts the answers that the run was trained on, and there is no"
                f" {file}: put it back, or leave --draft-tokens out."
            )
    return files


def _facts(stages: Stages, drafter: Path) -> Facts:
    """What the card tells; of a drafter from elsewhere neither data nor recipe are known."""
    name = stages.model or NAME
    local = Path(name).is_absolute()
    target = Path(name).name if local else name
    base = None if local else stages.model
    figures = _figures_of(drafter, stages.place.figures)
    if not drafter.resolve().is_relative_to(stages.place.run.resolve()):
        return Facts(target, {}, {}, figures, base=base)
    return Facts(
        target,
        data=_data(stages, read_json(drafter / "config.json")["vocab_size"]),
        recipe={name: value for name, value in stages.noted.items() if name != "data"},
        figures=figures,
        steps=_steps(drafter, stages.place.run),
        base=base,
    )


def _data(stages: Stages, vocabulary: int) -> dict[str, Any]:
    """What the run was trained on: which files, who wrote them, and how much."""
    known: dict[str, Any] = {}
    for path in stages.data:
        known |= read_manifest(path) if path.is_dir() else {}
    known.pop("settings", None)
    if stages.noted.get("data"):
        known["files"] = ", ".join(path.name for path in stages.data)
    if lost := [path for path in stages.data if not path.exists()]:
        say(f"note: there is no {lost[0]}, so the card does not tell how much data there was")
        return known
    return {**known, **stages.corpus(vocabulary).describe()}


def _figures_of(drafter: Path, file: Path) -> list[dict[str, Any]]:
    """What was measured of this very drafter, and of no earlier or other one."""
    same = fingerprint(drafter)
    return [row for row in read_figures(file) if row.get("drafter") == same]


def _steps(drafter: Path, run: Path) -> str | None:
    """How many steps the run has done, and whether the drafter is of the last of them."""
    last = checkpoints(run)[-1:]
    if not last:
        return None
    steps = f"{read_json(last[0] / 'state.json')['step']:,}"
    same = fingerprint(drafter) == fingerprint(last[0] / DRAFTER)
    return steps if same else f"{steps}; this drafter is of an earlier one"
