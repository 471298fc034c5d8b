"""A pair at work on this machine: the same text with and without drafting, and what rounds cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..api import encode
from ..benchmark.difference import explain
from ..engine.generation import stream
from ..engine.options import Options, Sampling
from ..engine.sampling import Chooser
from ..pair import Pair
from .finding import Finding

PROMPTS = ("Why is the sky blue?", "Write a Python function that reverses a list.")
_CONTEXT = 64


def pair_findings(pair: Pair, max_tokens: int = 24) -> Iterator[Finding]:
    """Identity, then costs."""
    yield identity_finding(pair, max_tokens)
    if pair.drafter is not None:
        yield cost_finding(pair)


def identity_finding(pair: Pair, max_tokens: int) -> Finding:
    """Whether greedy drafting says what plain decoding says; a tie of rounding is no fault."""
    name = "identity"
    if pair.drafter is None:
        return Finding(name, "note", f"{pair.configuration.model} has no drafter to look at")
    rows = pair.block_size(Options())
    ties = []
    for prompt in PROMPTS:
        tokens = encode(pair, [{"role": "user", "content": prompt}])
        plain, drafted = (_reply(pair, tokens, size, max_tokens) for size in (1, rows))
        if plain != drafted:
            found = explain(pair, tokens, plain, drafted, rows)
            if found.verdict != "tie":
                cure = "use --no-draft and report this with `dflash-mlx doctor --json`"
                return Finding(name, "wrong", f"{prompt} {found}", cure)
            ties.append(f"{prompt} {found}")
    if ties:
        return Finding(name, "note", "; ".join(ties), "nothing: rounding decides between equals")
    words = f"{pair.configuration.model}: {len(PROMPTS)} answers are the same with {rows} rows"
    return Finding(name, "ok", words)


def cost_finding(pair: Pair) -> Finding:
    """What a round costs here by rows, and how many tokens it must give to beat plain decoding."""
    context, chooser = pair.context(), Chooser(Sampling())
    context.prefill([0] * _CONTEXT, draft=True)
    pair.tuning.measure(context, chooser)
    costs = pair.tuning.costs(chooser)
    at = costs.at(_CONTEXT)
    verified, drafted = costs.rows_to_measure()
    rounds = {rows: at.verify[rows - 1] + at.draft[rows - 1] for rows in drafted}
    return costs_told(at.verify[0], rounds, {rows: at.verify[rows - 1] for rows in verified[1:]})


def costs_told(plain: float, rounds: Mapping[int, float], copies: Mapping[int, float]) -> Finding:
    """`plain` is a plain step's seconds, `rounds` those of a round of so many rows, its draft too.

    `copies` are those of a round without a draft. Drafting cannot pay where even a full block costs
    more than its rows by plain decoding.
    """
    even = {rows: seconds / plain for rows, seconds in rounds.items()}
    words = (
        f"a token {plain * 1000:.1f} ms; a round, in tokens that it must give: {_by_rows(even)};"
        f" of a copy: {_by_rows({rows: seconds / plain for rows, seconds in copies.items()})}"
    )
    figures = {
        "plain_seconds": plain,
        "round_seconds": dict(rounds),
        "copy_seconds": dict(copies),
    }
    if all(times >= rows for rows, times in even.items()):
        cure = "use --no-draft here, or mend what is noted of the BLAS"
        return Finding("cost of rounds", "note", f"{words}: drafting cannot pay", cure, figures)
    return Finding("cost of rounds", "ok", words, figures=figures)


def _by_rows(times: Mapping[int, float]) -> str:
    return ", ".join(f"{rows} rows {each:.1f}" for rows, each in times.items())


def _reply(pair: Pair, tokens: list[int], rows: int, limit: int) -> list[int]:
    """The tokens of one greedy reply."""
    options = Options(Sampling(), max_tokens=limit, seed=0, block_size=rows)
    return [token for e in stream(pair, pair.context(), tokens, options) for token in e.tokens]
