"""Try what was converted: a sample of the model, the acceptance of a drafter."""

from __future__ import annotations

from pathlib import Path

from ..backend import Backend
from ..engine.events import acceptance_length
from ..engine.generation import stream
from ..engine.options import Options, Sampling
from ..hub.pairs import PairFolders
from ..pair import Pair, load_pair

SAMPLE_PROMPT = "The three primary colours are"
SAMPLE_TOKENS = 16
PROMPTS = (
    "What is gravity?",
    "Write a function in Python that reverses a list.",
    "What is 17 times 6? Explain each step.",
    "Name three rivers of Europe and where they end.",
    "Write two sentences about the sea.",
)
ANSWER_TOKENS = 64


def sample(folder: Path, backend: Backend) -> str:
    """What the model in `folder`, loaded afresh, says after a prompt: 16 greedy tokens."""
    pair = load_pair(PairFolders(folder.name, folder), None, backend)
    options = Options(sampling=Sampling(), max_tokens=SAMPLE_TOKENS)
    tokens = pair.encode_text(SAMPLE_PROMPT)
    answer = stream(pair, pair.context(), tokens, options, continuing=True)
    return SAMPLE_PROMPT + "".join(event.text for event in answer)


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
