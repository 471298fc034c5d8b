"""Try what was converted: a model's words and its perplexity, a drafter's acceptance."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend import Backend
from ..engine.events import acceptance_length
from ..engine.generation import stream
from ..engine.options import Options, Sampling
from ..hub.fit import WORKING, loaded_bytes, this_machine
from ..hub.pairs import PairFolders
from ..model_folder import read_optional_json
from ..pair import Pair, default_sampling, load_pair
from ..target.load import load_pair_tokenizer
from .target import open_target

SAMPLE_PROMPT = "The three primary colours are"
SAMPLE_TOKENS = 16
TEXT = """\
A lighthouse does one thing well: it says where it is. For two hundred years somebody climbed the
stairs at dusk, trimmed the wick, wound the clockwork that turned the lens, and wrote the weather in
a book. The light was white, with a flash every ten seconds, so that a captain far out at sea could
count and know which coast lay ahead. When electricity came, the keeper had less to do, and when the
first automatic lamp was fitted, nothing at all. Today the tower stands empty. A small computer
switches the lamp on when it gets dark, and reports by radio if the bulb fails. Visitors pay three
euros, climb the 217 steps and look at the sea. Most of them ask the same question: was it lonely?
The old log books suggest that it was not. They are full of names, of ships and of birds, and of the
people who came on Sundays with bread, newspapers and gossip from the village.
"""
TEXT_TOKENS = 256
PROMPTS = (
    "What is gravity?",
    "Write a function in Python that reverses a list.",
    "What is 17 times 6? Explain each step.",
    "Name three rivers of Europe and where they end.",
    "Write two sentences about the sea.",
)
ANSWER_TOKENS = 64


@dataclass(frozen=True)
class Trial:
    """What a converted model says after a prompt, and its perplexity on a short text.

    `before` is the original's, None where it was not asked for (`compared` is false) or does not
    fit in memory.
    """

    sample: str
    perplexity: float
    compared: bool
    before: float | None = None

    def lines(self) -> Iterator[str]:
        """For a person, a fact a line."""
        figures = f"{self.perplexity:.2f} on a short text"
        if self.before is not None:
            change = self.perplexity / self.before - 1
            figures = f"{self.before:.2f} -> {figures} ({change:+.1%})"
        elif self.compared:
            figures += "; the original does not fit in memory, to compare"
        yield f"{'perplexity':12}{figures}"
        yield f"{'sample':12}{self.sample!r}"


def try_model(folder: Path, backend: Backend, original: Path | None = None) -> Trial:
    """Load the model in `folder` afresh and try it, against the `original` as memory allows.

    16 greedy tokens, and the perplexity of up to 256. The two are never in memory together.
    """
    pair = load_pair(PairFolders(folder.name, folder), None, backend)
    options = Options(sampling=Sampling(), max_tokens=SAMPLE_TOKENS)
    prompt, text = pair.encode_text(SAMPLE_PROMPT), pair.encode_text(TEXT)[:TEXT_TOKENS]
    answer = stream(pair, pair.context(), prompt, options, continuing=True)
    said = SAMPLE_PROMPT + "".join(event.text for event in answer)
    after = perplexity(pair.target.model, text)
    del pair, answer
    gc.collect()
    mx.clear_cache()
    before = perplexity_of(original, text, backend) if original else None
    return Trial(said, after, original is not None, before)


def check_companions(folder: Path, config: dict[str, Any]) -> None:
    """Raise DFlashError unless what stands beside the weights of a target can be loaded too.

    So that nobody learns after hours of work that the tokenizer was never there.
    """
    load_pair_tokenizer(folder, config)
    default_sampling(read_optional_json(folder / "generation_config.json"))


def perplexity_of(folder: Path, tokens: Sequence[int], backend: Backend) -> float | None:
    """The perplexity of the model in `folder`; None where it does not fit in memory."""
    machine = this_machine()
    if loaded_bytes(folder, machine.float_bytes) + WORKING > machine.usable:
        return None
    source = open_target(folder)
    if backend.device == "cpu":
        source.cast("float32")
    return perplexity(source.model, tokens)


def perplexity(model: nn.Module, tokens: Sequence[int]) -> float:
    """How many tokens a model hesitates between at each place of a text: exp of its mean loss."""
    ids = mx.array(list(tokens))
    logits = model(ids[None])[0, :-1].astype(mx.float32)
    loss = nn.losses.cross_entropy(logits, ids[1:], reduction="mean")
    return cast(float, mx.exp(loss).item())


def tried_rows(target: PairFolders, drafter: Path, backend: Backend) -> bool:
    """Whether a drafter drafts from the anchor's own row on, as one prompt tells."""
    names = PairFolders(target.model, target.model_folder, drafter.name, drafter, chosen=True)
    pair = load_pair(names, None, backend)
    assert pair.drafter is not None
    return pair.drafter.config.drafts_from_anchor


def acceptance(target: PairFolders, drafter: Path, backend: Backend) -> float | None:
    """The acceptance length of the drafter in a folder, greedy, over five prompts."""
    names = PairFolders(target.model, target.model_folder, drafter.name, drafter)
    pair = load_pair(names, None, backend)
    accepted: list[int] = []
    for prompt in PROMPTS:
        options = Options(sampling=Sampling(), max_tokens=ANSWER_TOKENS)
        stats = list(stream(pair, pair.context(), _tokens(pair, prompt), options))[-1].stats
        accepted += stats.accepted
    return acceptance_length(accepted)


def _tokens(pair: Pair, prompt: str) -> list[int]:
    if not pair.tokenizer.has_chat_template:
        return pair.encode_text(prompt)
    return pair.encode(pair.render([{"role": "user", "content": prompt}]))
