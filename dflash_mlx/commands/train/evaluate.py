"""`train eval`: acceptance on what the drafter has not seen, walked and served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...benchmark import strata
from ...engine.options import Options, Sampling
from ...errors import DFlashError, UsageError
from ...pair import Pair
from ...training.conversations import Conversation, digest, read_conversations
from ...training.corpus import HELDOUT, fingerprint
from ...training.evaluation import ServedSet, first_prompts, serve, walked_like_served
from ...training.prompts import read_prompts
from ...training.run import greedy, summarize
from ...training.settings import EvalSettings, gather
from ...training.walking import Acceptance, Walker
from .figures import is_measured, keep_figures, read_figures
from .progress import acceptance_line, paced, say
from .stages import Stages

KINDS = strata.FILES.keys() - {"long-context"}
"""`bench`'s prompts that are asked as they stand."""
Messages = list[dict[str, str]]

_ELSE = "chat"
"""What is asked where so few conversations were prepared that none is held out."""


def evaluate(stages: Stages, given: dict[str, Any]) -> None:
    """Measure, print, and keep the figures of each set as soon as it is done.

    What is measured already is not measured again, so the same command goes on after Ctrl-C.
    """
    settings = gather(EvalSettings, stages.section("eval"), given)
    asked = _sets(settings)
    read_figures(stages.place.figures)  # a damaged file is told before anything is measured
    drafter = settings.draft_model or stages.best()
    pair = stages.with_drafter(drafter)
    talks = [] if asked else _heldout(stages, settings, pair)
    if not (asked or talks or settings.data):
        say(
            f"note: nothing is held out, so bench's questions of the kind {_ELSE} are asked; more"
            " conversations or a larger --heldout in `train prepare` would hold some out"
        )
        asked = {_ELSE: _prompts(Path(_ELSE), settings.serve)}
    sets = {name: [pair.encode(pair.render(one)) for one in asked[name]] for name in asked}
    if talks:
        sets = {_name(settings): first_prompts(talks)[: settings.serve]}
    walk = greedy(talks)
    if not walk and not any(sets.values()):
        raise DFlashError(
            "There is no conversation to evaluate on in --data: name a file that has some, or leave"
            " it out."
            if settings.data
            else "No greedy answer is held out that could be walked, and --serve 0 serves none:"
            " leave it out."
        )
    ran = pair.configuration
    how = [fingerprint(stages.names.model_folder), ran.target_dtype, ran.device, ran.blas]
    whose = {
        "drafter": fingerprint(drafter),
        "rows": pair.block_size(Options(block_size=settings.block_size)),
    }
    if walk:
        row = {**whose, "set": f"{_name(settings)}, walked", "temperature": 0.0}
        _keep(stages, row, [how, digest(walk)], partial(_walked, pair, settings, walk))
    for name, prompts in sets.items():
        for temperature in (settings.temperature or [0.0]) if prompts else []:
            row = {**whose, "set": f"{name}, served", "temperature": temperature}
            asking = [how, settings.max_tokens, settings.seed, settings.plain, prompts]
            serving = partial(_served, pair, settings, name, prompts, temperature)
            _keep(stages, row, asking, serving)


def _keep(
    stages: Stages,
    row: dict[str, Any],
    asked: list[Any],
    measure: Callable[[], list[dict[str, Any]]],
) -> None:
    """Measure what `row` says, and keep it, unless the same was measured as the same was asked."""
    file = stages.place.figures
    row["asked"] = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    if is_measured(file, row):
        what = f"{row['set']}, temperature {row['temperature']:g}"
        say(f"{what}: measured already; to measure anew, delete {file}")
    else:
        keep_figures(file, [{**row, **figures} for figures in measure()])


def _walked(pair: Pair, settings: EvalSettings, talks: list[Conversation]) -> list[dict[str, Any]]:
    """Walk conversations and tell how it went."""
    assert pair.drafter is not None
    walker = Walker(pair.target, pair.drafter, pair.stop_tokens, settings.block_size)
    total = Acceptance()
    for walk in paced(map(walker.walk, talks), len(talks), "walked", " conversations"):
        total.add(walk)
    say(f"walked: {acceptance_line(total)} · anchor_accept {total.anchor_accept:.2f}")
    return [summarize(total)]


def _served(
    pair: Pair, settings: EvalSettings, name: str, prompts: list[list[int]], temperature: float
) -> list[dict[str, Any]]:
    """Serve one set of prompts and tell how it went: answers that loop in figures of their own."""
    sampling = replace(pair.defaults, temperature=temperature) if temperature else Sampling()
    options = Options(
        sampling=sampling,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        block_size=settings.block_size,
    )
    served = serve(pair, prompts, options, settings.plain)
    answers = ServedSet(list(paced(served, len(prompts), "served")))
    figures = []
    for part, looping in zip(answers.apart(), (False, True), strict=True):
        if part.answers:
            row = {"set": f"{name}, served", "temperature": temperature, "looping": looping}
            figures.append({**row, **part.to_json()})
            _tell(figures[-1], part)
    if not temperature:
        walks = walked_like_served(pair, answers.answers, settings.block_size, settings.max_tokens)
        alike = list(paced(walks, len(answers.answers), "walked", " answers"))
        say(f"  walked in the same rounds as served: {sum(alike)} of {len(alike)} answers")
        figures = [{**row, "walked_like_served": sum(alike) / len(alike)} for row in figures]
    return figures


def _tell(figures: dict[str, Any], part: ServedSet) -> None:
    """Say how the answers of one set at one temperature did."""
    kind = ", which go round in circles" if figures["looping"] else ""
    say(
        f"{figures['set']}, temperature {figures['temperature']:g},"
        f" {figures['answers']} answers{kind}: {acceptance_line(part.acceptance)}"
    )
    if figures["times_plain"]:
        say(
            f"  {figures['tokens_per_second']:.1f} tokens/s, plain decoding"
            f" {figures['plain_tokens_per_second']:.1f}, {figures['times_plain']:.2f} times"
            f" (medians); the same tokens in {sum(figures['same_as_plain'])}"
        )


def _heldout(stages: Stages, settings: EvalSettings, pair: Pair) -> list[Conversation]:
    """The conversations to walk: those named, else those that the run held out."""
    if settings.data:
        talks: list[Conversation] = []
        for path in settings.data:
            file = path / HELDOUT if path.is_dir() else path
            talks += read_conversations(file, pair.target.vocab_rows)
        return talks[: settings.conversations]
    return stages.corpus(pair.target.vocab_rows).heldout[: settings.conversations]


def _name(settings: EvalSettings) -> str:
    """What conversations that are walked are called: files that are named go by their names."""
    return ", ".join(path.name.split(".")[0] for path in settings.data or []) or "held out"


def _sets(settings: EvalSettings) -> dict[str, list[Messages]]:
    """The prompts to serve, by the name of their set. Raises UsageError where two have one name."""
    sets = dict[str, list[Messages]]()
    for path in settings.prompts or []:
        if path.stem in sets:
            raise UsageError(
                f"Two sets of prompts are called {path.stem}, and figures go by that name: rename a"
                " file, or leave one out."
            )
        sets[path.stem] = _prompts(path, settings.conversations)
    return sets


def _prompts(path: Path, limit: int) -> list[Messages]:
    """The first questions of a file of prompts, or of those that `bench` has."""
    if str(path) in KINDS and not path.exists():
        return [[{"role": "user", "content": t}] for t in strata.prompts(str(path), limit)]
    conversations = []
    for prompt in read_prompts(path)[:limit]:
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        conversations.append([*system, {"role": "user", "content": prompt.turns[0]}])
    return conversations
