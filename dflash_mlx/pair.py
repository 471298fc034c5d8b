"""A pair: a target, its drafter and its tokenizer, loaded and checked to belong together."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jinja2 import TemplateError
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .backend import Backend
from .belonging import check_pair, check_tokenizers, stranger, trained_thinking
from .drafter import Drafter, load_drafter
from .drafter.fused import fuse
from .drafter.serving import serve
from .dtypes import DTYPES, dtype_name
from .engine.blocks import COPIED_ROWS
from .engine.context import Context
from .engine.drafting import BlockDrafting, draft_head
from .engine.events import FUSED_LAYERS, STOCK_KERNELS, Configuration
from .engine.exact import prove
from .engine.memory import Allocator, hold, machine_limits
from .engine.options import Options, Sampling
from .engine.racing import kernels, race_first
from .engine.session import Session
from .engine.stops import stop_token_ids
from .engine.text import TokenBytes, check_text
from .engine.thinking import thinking_tags
from .engine.tuning import Tuning
from .errors import DFlashError, UsageError
from .hub.pairs import PairFolders
from .kernels.metal import MAX_ROWS
from .model_folder import read_optional_json
from .quantized import suited
from .row_convention import settle_rows
from .target.load import load_pair_tokenizer, load_target
from .target.model import Target


@dataclass
class Pair:
    """A target and its drafter (None: plain decoding), ready to generate.

    `defaults` is how the pair samples where the caller does not say; `thinking` whether it reasons
    first, from how its drafter was trained; None leaves that to the model's template. In
    `costs_folder` it keeps what rounds cost on this machine; None keeps that in memory alone.
    """

    target: Target
    drafter: Drafter | None
    tokenizer: TokenizerWrapper
    stop_tokens: frozenset[int]
    configuration: Configuration
    defaults: Sampling = field(default_factory=Sampling)
    thinking: bool | None = None
    costs_folder: Path | None = None

    def __post_init__(self) -> None:
        self.thinking_tags = thinking_tags(self.tokenizer)
        self.token_bytes = TokenBytes(self.tokenizer, shown=self.thinking_tags)
        self.draft_head = draft_head(self.target, self.drafter) if self.drafter else None
        rows = self.drafter.config.verified_rows if self.drafter else 1
        self.tuning = Tuning(rows, self._facts(), self.costs_folder)

    def session(
        self,
        system: str | None = None,
        options: Options | None = None,
        thinking: bool | None = None,
    ) -> Session:
        """Begin a conversation; without `options`, with the pair's sampling and blocks "auto"."""
        options = options or Options(sampling=self.defaults, block_size="auto")
        return Session(self, options, system, thinking)

    def context(self) -> Context:
        """Fresh caches for one conversation."""
        drafter, head = self.drafter, self.draft_head
        drafting = BlockDrafting(self.target, drafter, head) if drafter else None
        if self.configuration.exact and self.target.metal is not None:
            # More rows would be MLX's own, whose bits depend on how many there are.
            return Context(self.target, drafting, MAX_ROWS, MAX_ROWS)
        slow = self.configuration.blas == "reference"
        chunk = 512 if self.configuration.device == "metal" else 8 if slow else 64
        return Context(self.target, drafting, chunk)

    def block_size(self, options: Options) -> int:
        """Rows of a block under `options`: 1 is plain decoding. Raises UsageError if too many."""
        if not options.draft or self.drafter is None:
            return 1
        trained = self.drafter.config.verified_rows
        if options.block_size == "auto":
            return trained
        if options.block_size is not None and options.block_size > trained:
            raise UsageError(
                f"block_size {options.block_size} is more than the {trained} rows that this drafter"
                f" was trained for: choose 1 to {trained}."
            )
        return options.block_size or trained

    def copies(self, options: Options) -> bool:
        """Whether drafts may be copied under `options`. Raises UsageError where they cannot be."""
        drafts = self.block_size(options) > 1
        if options.block_size != "auto" or not (drafts if options.copy is None else options.copy):
            return False
        if not drafts and self._cannot_go_back:
            raise UsageError(f"This target cannot copy: {self._cannot_go_back}. Leave out --copy.")
        return True

    @cached_property
    def _cannot_go_back(self) -> str | None:
        return self.target.rollback_refusal()

    def hold_memory(self, device: dict[str, Any], allocator: Allocator) -> None:
        """Limit what MLX takes of a Mac's memory, for as long as this pair lives.

        device: as `mx.device_info()` tells it; without Metal nothing is set.
        """
        if wanted := machine_limits(sum(self._weights()), device):
            weakref.finalize(self, hold(wanted, allocator))

    def _weights(self) -> list[int]:
        """Bytes of the target's parameters, and of the drafter's."""
        models = [self.target.model, *([self.drafter] if self.drafter else [])]
        return [_nbytes(model) for model in models]

    def _facts(self) -> dict[str, Any]:
        """What the costs of rounds depend on, apart from the machine."""
        metal = self.target.metal
        how = {"kv_bits": self.target.kv_bits, "own_kernels": metal is not None}
        facts = {**vars(self.configuration), **how, "nbytes": self._weights()}
        del facts["notes"]
        return facts

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the tokenizer's own beginning-of-text if it has one."""
        bos = self.tokenizer.bos_token
        special = bos is None or not text.startswith(bos)
        return self._encode(text, special)

    @property
    def can_switch_thinking(self) -> bool:
        """Whether the chat template has a switch for reasoning."""
        return "enable_thinking" in str(self.tokenizer.chat_template)

    def render(self, messages: Sequence[Mapping[str, Any]], thinking: bool | None = None) -> str:
        """A conversation by the model's chat template, up to where the reply begins.

        thinking: switches reasoning on or off where the template can; None is the pair's own way.
        Raises UsageError where there is no template, or it refuses the conversation.
        """
        if not self.tokenizer.has_chat_template:
            raise UsageError(
                "This model has no chat template (it is a base model): use"
                " `generate --ignore-chat-template` to continue a raw text."
            )
        mode = self.thinking if thinking is None else thinking
        switch, renderer = {}, self.tokenizer
        if self.can_switch_thinking and mode is not None:
            switch = {"enable_thinking": mode}
        elif self.can_switch_thinking:  # mlx-lm's wrapper says "on" where nothing is said
            renderer = self.tokenizer._tokenizer
        try:
            rendered: str = renderer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **switch,
            )
        except TemplateError as error:
            raise UsageError(f"The model's chat template refuses this: {error}.") from error
        return rendered

    def encode(self, rendered: str) -> list[int]:
        """Token ids of a text that has its special tokens written out."""
        return self._encode(rendered, special=False)

    def _encode(self, text: str, special: bool) -> list[int]:
        check_text(text)
        return list(self.tokenizer.encode(text, add_special_tokens=special))


def load_pair(
    names: PairFolders,
    dtype: str | None,
    backend: Backend,
    kv_bits: int | None = None,
    costs_folder: Path | None = None,
    *,
    own_kernels: bool = True,
) -> Pair:
    """Load the pair in the folders `names`, in `dtype` or what suits the machine.

    `own_kernels` lets ours serve on a Mac, where they are faster or `backend` promises exactness,
    and fused layers on a CPU with OpenBLAS.
    A target that cannot draft decodes plainly, with a note, unless a person chose the drafter.
    Raises DFlashError where a file is broken, or the two do not belong together.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}; it is {dtype}.")
    wanted = DTYPES[dtype] if dtype else None
    model_, config, weights = load_target(names.model_folder, wanted, backend.device, kv_bits)
    drafter, draft_weights = None, ""
    on_metal = backend.device == "metal"
    metal = kernels(backend.exact, costs_folder) if on_metal and own_kernels else None
    fused = own_kernels and backend.device == "cpu" and backend.blas == "openblas"
    if names.draft_folder is not None:
        drafter = load_drafter(names.draft_folder, wanted or _draft_dtype(backend))
        drafter, draft_weights = suited(drafter, backend.device)
        if metal is not None:
            serve(drafter, metal)
        if fused:
            fuse(drafter)
    taps = drafter.config.target_layer_ids if drafter else ()
    target = Target(model_, config, taps, kv_bits, metal, fused)
    target.asked_context = names.context
    tokenizer = load_pair_tokenizer(names.model_folder, config)
    generation_config = read_optional_json(names.model_folder / "generation_config.json")
    stop_tokens = stop_token_ids(
        tokenizer, read_optional_json(names.model_folder / "config.json"), generation_config
    )
    if drafter is not None:
        reason = None if names.chosen else target.rollback_refusal()
        if reason is None:
            check_pair(target, drafter, stop_tokens)
            check_tokenizers(names, tokenizer)
        else:
            drafter = None
            names = replace(names, draft_model=None, note=f"decoding plainly: {reason}")
    pair = Pair(
        target,
        drafter,
        tokenizer,
        stop_tokens,
        _configuration(names, target, drafter, (weights, draft_weights), backend),
        default_sampling(generation_config),
        _thinking(names),
        costs_folder,
    )
    drafted = pair.configuration.block_size
    rows = max(drafted, COPIED_ROWS) if drafter else 1
    if on_metal and backend.exact:
        prove(target, rows)
    elif metal is not None:
        race_first(pair.context(), rows, drafted)
    if drafter is not None and drafter.config.rows_in_doubt:
        pair = settle_rows(pair)
    if on_metal:
        pair.hold_memory(mx.device_info(), mx)
    return pair


def default_sampling(generation_config: Mapping[str, Any]) -> Sampling:
    """How the model's `generation_config.json` wants it sampled; greedy where it does not say."""
    if generation_config.get("do_sample") is False or "temperature" not in generation_config:
        return Sampling()
    known = (
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "repetition_penalty",
        "repetition_context_size",
    )
    given = {name: generation_config[name] for name in known if generation_config.get(name)}
    try:
        return Sampling(**given)
    except (UsageError, TypeError) as error:
        why = error if isinstance(error, UsageError) else "a value of it is no number."
        raise DFlashError(f"The model's generation_config.json cannot be used: {why}") from error


def _thinking(names: PairFolders) -> bool | None:
    """How the drafter was trained: as its folder says, else as is known of it."""
    stated = trained_thinking(names.draft_folder) if names.draft_folder else None
    return names.thinking if stated is None else stated


def _nbytes(model: nn.Module) -> int:
    """Bytes of a model's parameters."""
    arrays: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return sum(array.nbytes for _, array in arrays)


def _draft_dtype(backend: Backend) -> mx.Dtype | None:
    return mx.float32 if backend.device == "cpu" else None


def _configuration(
    names: PairFolders,
    target: Target,
    drafter: Drafter | None,
    weights: tuple[str, str],
    backend: Backend,
) -> Configuration:
    """What runs; `weights` are words on those of the target and of the drafter."""
    notes = (names.note, stranger(names, drafter), names.memory)
    return Configuration(
        model=names.model,
        draft_model=names.draft_model,
        target_dtype=_in_words(target.dtype, weights[0]),
        draft_dtype=_in_words(drafter.norm.weight.dtype, weights[1]) if drafter else None,
        device=backend.device,
        blas=backend.blas,
        compiled=backend.compiled,
        exact=backend.exact,
        block_size=drafter.config.verified_rows if drafter else 1,
        kernels=FUSED_LAYERS if target.serving.fused else STOCK_KERNELS,
        notes=(*backend.notes, *(note for note in notes if note)),
        draft_vocab=len(drafter.config.draft_vocab or ()) or None if drafter else None,
    )


def _in_words(dtype: mx.Dtype, weights: str) -> str:
    name = dtype_name(dtype)
    return f"{name} ({weights})" if weights else name
