"""`train eval`: acceptance on what the drafter has not seen, walked and served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...engine.options import Options, Sampling
from ...errors import DFlashError
from ...model_folder import read_json
from ...pair import Pair
from ...training.checkpoint import checkpoints
from ...training.conversations import Conversation, read_conversations
from ...training.corpus import HELDOUT, read_corpus
from ...training.evaluation import ServedSet, first_prompts, serve, walked_like_served
from ...training.prompts import read_prompts
from ...training.run import greedy, settle, summarize
from ...training.settings import EvalSettings, RunSettings, gather
from ...training.walking import Walker
from .progress import Pace, acceptance_line, say
from .stages import Stages


def evaluate(stages: Stages, given: dict[str, Any]) -> None:
    """Measure, print, and keep the figures for the model card."""
    settings = gather(EvalSettings, stages.section("eval"), given)
    pair = stages.with_drafter(settings.draft_model or stages.best())
    talks = [] if settings.prompts else _heldout(stages, settings, pair)
    rows = []
    if talks:
        assert pair.drafter is not None
        walker = Walker(pair.target, pair.drafter, pair.stop_tokens, settings.block_size)
        walked = walker.walk_all(greedy(talks))
        say(f"walked: {acceptance_line(walked)} · anchor_accept {walked.anchor_accept:.2f}")
        rows.append({"set": "held out, walked", **summarize(walked)})
    sets = (
        {path.stem: _prompts(pair, path, settings) for path in settings.prompts}
        if settings.prompts
        else {"held out": first_prompts(talks)[: settings.serve]}
    )
    for name, prompts in sets.items():
        if prompts:
            rows.append(_served(pair, settings, name, prompts))
    if not rows:
        raise DFlashError(
            "Nothing is held out to evaluate on: name conversations as --data, or --prompts."
        )
    _keep_figures(stages.place.figures, rows)


def _served(
    pair: Pair, settings: EvalSettings, name: str, prompts: list[list[int]]
) -> dict[str, Any]:
    """Serve one set of prompts and tell how it went."""
    sampling = (
        replace(pair.defaults, temperature=settings.temperature)
        if settings.temperature
        else Sampling()
    )
    options = Options(
        sampling=sampling,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        block_size=settings.block_size,
    )
    answers, pace = ServedSet(), Pace()
    pace.due(0)
    for one in serve(pair, prompts, options, settings.plain):
        answers.answers.append(one)
        done = len(answers.answers)
        if pace.due(done):
            say(f"served {done} of {len(prompts)}{pace.left(done, len(prompts))}")
    figures = answers.to_json()
    rounds = acceptance_line(answers.acceptance)
    say(f"served, {name}, temperature {settings.temperature:g}: {rounds}")
    if figures["looped_answers"]:
        pure = answers.others
        apart = f"{pure.length:.3f} without them" if pure.accepted else "all of them"
        say(f"  {figures['looped_answers']} answers went round in circles: {apart}")
    if settings.plain and figures["times_plain"]:
        same = sum(figures["same_as_plain"])
        say(
            f"  {figures['tokens_per_second']:.1f} tokens/s, {figures['times_plain']:.2f} times"
            f" plain decoding (medians); the same tokens in {same} of {len(answers.answers)}"
        )
    if not settings.temperature:
        alike = walked_like_served(pair, answers.answers, settings.block_size)
        say(f"  walked in the same rounds as served: {sum(alike)} of {len(alike)} answers")
        figures["walked_like_served"] = sum(alike) / len(alike)
    return {"set": f"{name}, served", "temperature": settings.temperature, **figures}


def _heldout(stages: Stages, settings: EvalSettings, pair: Pair) -> list[Conversation]:
    """The conversations to walk: those named, else those that the run held out."""
    if settings.data:
        talks: list[Conversation] = []
        for path in settings.data:
            file = path / HELDOUT if path.is_dir() else path
            talks += read_conversations(file, pair.target.vocab_rows)
        return talks[: settings.conversations]
    noted = settle(stages.place.run) if checkpoints(stages.place.run) else RunSettings()
    corpus = read_corpus(
        noted.data or [stages.place.data],
        pair.target.vocab_rows,
        "",
        heldout=noted.heldout,
        max_length=noted.max_length,
        keep_loops=noted.keep_loops,
    )
    return corpus.heldout[: settings.conversations]


def _prompts(pair: Pair, path: Path, settings: EvalSettings) -> list[list[int]]:
    """The first questions of a file of prompts, as token ids."""
    encoded = []
    for prompt in read_prompts(path)[: settings.conversations]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages.append({"role": "user", "content": prompt.turns[0]})
        encoded.append(pair.encode(pair.render(messages)))
    return encoded


def _keep_figures(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was measured; the same sets measured earlier are replaced."""
    earlier = read_json(path)["rows"] if path.exists() else []
    names = {(row["set"], row.get("temperature", 0)) for row in rows}
    kept = [row for row in earlier if (row["set"], row.get("temperature", 0)) not in names]
    path.write_text(json.dumps({"rows": [*kept, *rows]}, indent=2) + "\n", encoding="utf-8")
