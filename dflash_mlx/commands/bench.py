"""`dflash-mlx bench`: every way to decode, on the same prompts, in turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from math import isfinite
from typing import Any

from rich.console import Console

from ..api import encode, load
from ..backend import Backend
from ..benchmark import strata
from ..benchmark.arms import MLX_LM, Arm, MlxLmArm, engine_arms
from ..benchmark.difference import explain
from ..benchmark.peer import PeerArm, parse_peer, peer_folders
from ..benchmark.plot import check_plot, write_plot
from ..benchmark.report import to_json
from ..benchmark.runner import Bench, Measured, Record, told
from ..benchmark.server import ServerArm, parse_server
from ..benchmark.strata import Stratum
from ..benchmark.table import against_lines, differences, table, warm_up_line
from ..dtypes import DTYPES
from ..engine.options import Sampling
from ..errors import DFlashError, UsageError
from ..hub.pairs import resolve_pair
from ..hub.resolve import resolve
from ..machine import chip, versions
from ..pair import Pair
from ..target.load import load_target
from .bench_arguments import BenchArguments
from .loading import bench_progress, setup_progress, silence_libraries

_WIDTH = 120


def run(arguments: BenchArguments, backend: Backend) -> None:
    """Measure and print; with Ctrl-C, what was measured until then."""
    if arguments.plot:
        check_plot(arguments.plot)
    strata.chosen(arguments.strata)
    peers = _each_once("--peer", [parse_peer(text) for text in arguments.peer or []])
    silence_libraries()
    if arguments.base_url:
        _bench_servers(arguments)
    else:
        with ExitStack() as stack:
            _bench_pair(arguments, backend, peers, stack)


def _bench_servers(arguments: BenchArguments) -> None:
    named = _each_once("--base-url", [parse_server(text) for text in arguments.base_url or []])
    arms = [ServerArm(name, url, arguments.model) for name, url in named]
    kinds = _strata(arguments, None, lambda text: len(text.split()) * 4 // 3)
    bench = _bench(arguments, arms, kinds, lambda text: [])
    measured = Measured()
    about: dict[str, Any] = {"servers": {arm.name: arm.model for arm in arms}}

    def report() -> None:
        measured.notes += [
            f"{arm.name} does not tell how many tokens it gave: chunks were counted"
            for arm in arms
            if arm.counts_chunks
        ]
        _report(arguments, about, to_json(bench, measured))

    _measure(bench, measured, report)


def _bench_pair(
    arguments: BenchArguments, backend: Backend, peers: list[tuple[str, str]], stack: ExitStack
) -> None:
    with setup_progress() as tell:
        pair = load(
            arguments.model,
            arguments.draft_model,
            dtype=arguments.dtype,
            cache_dir=arguments.cache_dir,
            progress=tell,
        )
    arms = engine_arms(pair, arguments.arms)
    if arguments.mlx_lm_draft:
        arms.append(_mlx_lm_with(arguments.mlx_lm_draft, pair, arguments, backend))
    measured = Measured(notes=list(pair.configuration.notes))
    for arm in _peers(pair, arguments, peers, stack):
        measured.notes.append(arm.note)
        arms.append(arm)
    ask = partial(_tokens, pair)
    kinds = _strata(arguments, pair.defaults, lambda text: len(pair.encode(text)))
    bench = _bench(arguments, arms, kinds, ask)
    about = {"configuration": asdict(pair.configuration), "thinking": pair.thinking}
    explain = partial(_difference, pair, {kind.name: kind for kind in kinds})
    _measure(bench, measured, lambda: _report(arguments, about, to_json(bench, measured, explain)))


def _each_once(flag: str, named: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was named, of which no two may share a name: their answers would be mixed."""
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{flag} names {name} twice: leave one out.")
    return named


def _bench(
    arguments: BenchArguments,
    arms: list[Any],
    kinds: list[Stratum],
    ask: Callable[[str], list[int]],
) -> Bench:
    return Bench(arms, kinds, ask, arguments.max_tokens, arguments.runs, arguments.seed)


def _tokens(pair: Pair, prompt: str) -> list[int]:
    """The prompt as `chat` and `generate` would have it."""
    return encode(pair, [{"role": "user", "content": prompt}])


def _strata(
    arguments: BenchArguments, own: Sampling | None, count: Callable[[str], int]
) -> list[Stratum]:
    """The kinds of prompts, each under its samplings. The second, where there are two, is greedy.

    Then its name says so; a model whose own sampling is greedy has but one.
    """
    greedy = Sampling()  # with "greedy" it stands alone, and with "both" where it is the own
    samplings: list[Sampling | None] = [own] if arguments.sampling != "greedy" else []
    if arguments.sampling != "own" and own != greedy:
        samplings.append(greedy)
    made = []
    for kind in strata.chosen(arguments.strata):
        texts = strata.prompts(kind, arguments.limit, context=arguments.context, count=count)
        for number, sampling in enumerate(samplings):
            made.append(Stratum(f"{kind}-greedy" if number else kind, texts, sampling))
    return made


def _mlx_lm_with(name: str, pair: Pair, arguments: BenchArguments, backend: Backend) -> Arm:
    """mlx-lm with a small draft model of its own kind."""
    with setup_progress() as tell:
        folder = resolve(name, "target", tell, root=arguments.cache_dir).folder
    dtype = DTYPES[arguments.dtype] if arguments.dtype else None
    model, config, _ = load_target(folder, dtype, backend.device)
    size = {**config, **config.get("text_config", {})}.get("vocab_size")
    if size != pair.target.vocab_rows:
        raise DFlashError(
            f"--mlx-lm-draft: {name} has a vocabulary of {size} tokens and the model one of"
            f" {pair.target.vocab_rows}: choose a smaller model of the same family."
        )
    return MlxLmArm(f"{MLX_LM}-draft", pair, model)


def _peers(
    pair: Pair, arguments: BenchArguments, peers: list[tuple[str, str]], stack: ExitStack
) -> list[PeerArm]:
    if not peers:
        return []
    names = resolve_pair(arguments.model, arguments.draft_model, root=arguments.cache_dir)
    folders = stack.enter_context(peer_folders(pair, names))
    arms = []
    for name, python in peers:
        arm = PeerArm(name, python, folders)
        stack.callback(arm.close)
        arms.append(arm)
    return arms


def _measure(bench: Bench, measured: Measured, report: Callable[[], None]) -> None:
    """Measure, and report whatever came of it."""
    try:
        with bench_progress() as tell:
            bench.measure(measured, tell)
    except (KeyboardInterrupt, Exception) as error:
        if measured.records:
            why = f" ({told(error)})" if isinstance(error, Exception) else ""
            measured.notes.append(f"stopped before the end{why}: these are the answers until then")
            report()
        raise
    report()


def _difference(
    pair: Pair, kinds: dict[str, Stratum], plain: Record, other: Record
) -> dict[str, Any]:
    """Where an answer departs from plain decoding's, for `report`."""
    ours, theirs = plain.sample.tokens or [], other.sample.tokens or []
    rows = pair.drafter.config.block_size if pair.drafter else 2
    found = explain(pair, _tokens(pair, plain.prompt), ours, theirs, rows)
    sampling = kinds[plain.stratum].sampling
    # Sampling chooses by more than the logits, so that their margin tells no tie from a bug.
    words = str(found) if sampling and sampling.greedy else f"after {found.place} tokens"
    return {
        "prompt": plain.prompt,
        "place": found.place,
        "top2_margin": found.second,
        "margin": found.margin if isfinite(found.margin) else None,
        "noise": found.noise,
        "words": words,
    }


def _report(arguments: BenchArguments, about: dict[str, Any], figures: dict[str, Any]) -> None:
    whole = {"machine": chip(), "versions": versions(), **about, **figures}
    if arguments.json:
        print(json.dumps(whole, ensure_ascii=False))
    else:
        _print(whole)
    if arguments.plot:  # last: a picture that cannot be written takes no figures along
        write_plot(arguments.plot, whole)


def _print(whole: dict[str, Any]) -> None:
    console = Console(width=_WIDTH, highlight=False)
    for name, stratum in whole["strata"].items():
        console.print(table(name, stratum, whole["compared_with"]))
        console.print()
    for line in [*against_lines(whole["strata"]), warm_up_line(whole["warm_up"])]:
        print(line)
    for line in [*whole["notes"], *differences(whole["strata"])]:
        print(f"note: {line}")
    print(f"{whole['machine']}; {', '.join(f'{k} {v}' for k, v in whole['versions'].items())}")
