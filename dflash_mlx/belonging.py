"""Whether a drafter and a target belong together, as far as their folders and weights tell."""

from __future__ import annotations

import re
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer

from .drafter import Drafter
from .errors import DFlashError
from .hub.pairs import PairFolders
from .hub.registry import base_name, pair_of_drafter
from .model_folder import read_optional_json
from .target.model import Target


def check_pair(target: Target, drafter: Drafter, stop_tokens: frozenset[int] = frozenset()) -> None:
    """Raise DFlashError unless the drafter was made for this target, by shapes and counts."""
    config = drafter.config
    for what, of_drafter, of_target in (
        ("hidden size", config.hidden_size, target.hidden_size),
        ("number of target layers", config.num_target_layers, target.num_layers),
    ):
        if of_drafter is not None and of_drafter != of_target:
            raise DFlashError(
                f"Drafter and target are not a pair: the drafter was made for a {what} of"
                f" {of_drafter}, the target's is {of_target}. Choose another --draft-model, or"
                " --no-draft."
            )
    if config.vocab_size > target.vocab_rows:
        raise DFlashError(
            f"Drafter and target are not a pair: the drafter's vocabulary has {config.vocab_size}"
            f" tokens, the target's {target.vocab_rows}. Choose another --draft-model, or"
            " --no-draft."
        )
    if config.mask_token_id in stop_tokens:
        raise DFlashError(
            f"Drafter and target are not a pair: the drafter's mask token {config.mask_token_id}"
            " ends the target's texts. Choose another --draft-model, or --no-draft."
        )
    if reason := target.rollback_refusal():
        raise DFlashError(f"This target cannot draft: {reason}. Use --no-draft.")


_STRANGERS = 0.01
"""Share of the ids that may stand for other tokens: a few may be spelled in another way."""


def check_tokenizers(names: PairFolders, tokenizer: TokenizerWrapper) -> None:
    """Raise DFlashError where the drafter's folder holds a tokenizer of other tokens."""
    file = names.draft_folder / "tokenizer.json" if names.draft_folder else None
    if file is None or not file.exists():
        return
    try:
        theirs = Tokenizer.from_file(str(file)).get_vocab()
    except Exception as error:  # the library raises nothing more precise
        raise DFlashError(f"{file} cannot be read ({error}): fetch the drafter again.") from error
    ours = tokenizer.get_vocab()
    both = ours.keys() & theirs.keys()
    strangers = sum(ours[token] != theirs[token] for token in both) + len(theirs) - len(both)
    if strangers > _STRANGERS * len(theirs):
        raise DFlashError(
            f"Drafter and target are not a pair: {strangers:,} of the {len(theirs):,} tokens of the"
            " drafter's tokenizer are others than the target's. Choose another --draft-model, or"
            " --no-draft."
        )


def stranger(names: PairFolders, drafter: Drafter | None) -> str | None:
    """A note where a drafter was made for a target of another name, which may fit all the same."""
    known = pair_of_drafter(names.draft_model or "")
    made_for = known.name if known else drafter.config.target_model if drafter else None
    also = known.also if known else ()
    named = {base_name(name) for name in (made_for, *also) if name}
    if drafter is None or not named or base_name(names.model) in named:
        return None
    return f"the drafter was made for {made_for}: with {names.model} fewer drafts may hit"


_CARD_SWITCH = re.compile(r"enable_thinking\W{1,4}(true|false)", re.IGNORECASE)


def trained_thinking(draft_folder: Path) -> bool | None:
    """Whether a drafter was trained on replies with reasoning, as far as its folder tells.

    `enable_thinking` in its config.json says so, else the way that its card (README.md) switches
    the target's template, if it is always the same. The wrong mode costs most of the acceptance.
    """
    stated = read_optional_json(draft_folder / "config.json").get("enable_thinking")
    if isinstance(stated, bool):
        return stated
    card = draft_folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.exists() else ""
    shown = {word.lower() for word in _CARD_SWITCH.findall(text)}
    return shown == {"true"} if len(shown) == 1 else None
