"""What a drafter is: every packaging's `config.json` becomes one `DrafterConfig`.

Weight shapes are the truth about dimensions, because some published configs are deep copies of
the target's. What shapes cannot tell (rope, taps, mask token) is read, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DFlashError
from .rope import RopeConfig, is_number

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULT_BLOCK_SIZE = 16

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class SecondConfig:
    """What DFlash 2 adds: the length and channel groups of its convolutions, and its selector."""

    kernel_size: int
    group_size: int
    rank: int
    top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """The dimensions and conventions of a drafter; contradictions are refused when it is made.

    `block_size` counts the rows of the drafter's own pass, the anchor's included: row k predicts
    the token at anchor + k, so that 16 rows are 15 drafts. With `drafts_from_anchor` row j predicts
    the token at anchor + j + 1, and 7 rows are 7 drafts; `rows_in_doubt` says that this was not
    stated, and has to be tried. `target_layer_ids` are the tapped decoder layers of the target,
    0-based, in the order in which `fc` takes them.
    `is_causal` None means: causal inside the block for sliding layers only. `embedding_scale`
    multiplies the target's (already scaled) embeddings; `output_multiplier`, then
    `logit_softcap` (None: off), apply to the logits of the target's head. `second` is None unless
    this is DFlash 2. `draft_vocab` are the tokens that drafts may come from (None: all), ascending;
    with `own_head` the drafter has a head over just those. `target_model` names the target that it
    was trained for, where its packaging does.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[str, ...]
    num_target_layers: int | None = None
    sliding_window: int | None = None
    is_causal: bool | None = None
    attention_bias: bool = False
    max_position_embeddings: int | None = None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    second: SecondConfig | None = None
    draft_vocab: tuple[int, ...] | None = field(default=None, repr=False)
    own_head: bool = False
    drafts_from_anchor: bool = False
    rows_in_doubt: bool = False
    target_model: str | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise DFlashError(
                f"The drafter has {self.num_heads} query heads, which {self.num_kv_heads} "
                "key heads cannot share evenly."
            )
        if self.block_size < 2:
            raise DFlashError(f"The drafter's block_size is {self.block_size}; it must be 2 up.")
        self._check_mask_token()
        self._check_taps()
        self._check_layer_types()
        self._check_draft_vocab()

    def _check_mask_token(self) -> None:
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise DFlashError(
                f"The drafter's mask_token_id {self.mask_token_id} is outside its vocabulary of "
                f"{self.vocab_size} tokens."
            )

    def _check_taps(self) -> None:
        ids = self.target_layer_ids
        if not ids or len(set(ids)) != len(ids):
            raise DFlashError(
                f"The drafter's target_layer_ids {list(ids)} must be one or more different layers."
            )
        deepest = self.num_target_layers
        if min(ids) < 0 or (deepest is not None and max(ids) >= deepest):
            raise DFlashError(
                f"The drafter's target_layer_ids {list(ids)} reach outside a target of "
                f"{deepest} layers."
            )

    def _check_layer_types(self) -> None:
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown:
            raise DFlashError(
                f"The drafter's layer_types name {', '.join(unknown)}; known are {FULL} and "
                f"{SLIDING}."
            )
        if len(self.layer_types) != self.num_layers:
            raise DFlashError(
                f"The drafter has {self.num_layers} layers, but its layer_types list "
                f"{len(self.layer_types)}."
            )
        if SLIDING in self.layer_types and (self.sliding_window or 0) < 2:
            raise DFlashError(
                f"The drafter has sliding_attention layers, but its sliding_window is "
                f"{self.sliding_window}; it must be 2 up."
            )

    def _check_draft_vocab(self) -> None:
        ids = self.draft_vocab
        if ids is None:
            return
        if not ids or len(set(ids)) != len(ids) or not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise DFlashError(
                f"The drafter's draft vocabulary must be different tokens of its {self.vocab_size}:"
                " remove it, or make it again."
            )

    @property
    def first_row(self) -> int:
        """The first row of a block that drafts: the anchor's own, or the one behind it."""
        return 0 if self.drafts_from_anchor else 1

    @property
    def verified_rows(self) -> int:
        """Rows of the target's pass over a whole block: the anchor and every draft."""
        return self.block_size + 1 - self.first_row

    def window(self, layer: int) -> int | None:
        """How far layer `layer` looks back: a key is visible iff q_pos - k_pos < window."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def causal(self, layer: int) -> bool:
        """Whether rows of the block see only themselves and earlier rows in layer `layer`."""
        if self.is_causal is None:
            return self.layer_types[layer] == SLIDING
        return self.is_causal


def read_config(
    raw: Mapping[str, Any], shapes: Shapes, second_version: bool = False
) -> DrafterConfig:
    """The config of a checkpoint: its `config.json` in z-lab's words, and its tensors' shapes.

    `shapes` are as if unquantized; `second_version` says that it is DFlash 2. Raises
    `DFlashError` naming the key that is missing or contradicts the weights.
    """
    fields = _Fields(raw)
    hidden, layers = _shape(shapes, "norm.weight")[0], _count_layers(shapes)
    head_dim = _shape(shapes, "layers.0.self_attn.q_norm.weight")[0]
    taps = tuple(fields.integers("target_layer_ids"))
    _check_dimensions(fields, shapes, hidden, layers, len(taps))
    mask_token_id = fields.integer("mask_token_id")
    for name in ("pad_token_id", "eos_token_id"):
        if mask_token_id in fields.integers(name, default=()):
            raise DFlashError(
                f"The drafter's mask_token_id {mask_token_id} is also its {name}: its config.json "
                "names a wrong mask token."
            )
    softcap = fields.number("final_logit_softcapping", default=0.0)
    return DrafterConfig(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=_heads(shapes, "q_proj", head_dim),
        num_kv_heads=_heads(shapes, "k_proj", head_dim),
        head_dim=head_dim,
        intermediate_size=_shape(shapes, "layers.0.mlp.gate_proj.weight")[0],
        vocab_size=fields.integer("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=_rope(fields),
        block_size=fields.integer("block_size", default=DEFAULT_BLOCK_SIZE),
        mask_token_id=mask_token_id,
        target_layer_ids=taps,
        layer_types=_layer_types(fields, layers),
        num_target_layers=fields.integer("num_target_layers", default=None),
        sliding_window=fields.integer("sliding_window", default=None),
        is_causal=fields.flag("is_causal", default=None),
        attention_bias="layers.0.self_attn.q_proj.bias" in shapes,
        max_position_embeddings=fields.integer("max_position_embeddings", default=None),
        embedding_scale=fields.number("input_embedding_scale", default=1.0),
        output_multiplier=fields.number("output_multiplier", default=1.0),
        logit_softcap=softcap if softcap > 0 else None,
        second=_second(fields, shapes) if second_version else None,
        drafts_from_anchor=fields.flag("sample_from_anchor", default=False) is True,
        rows_in_doubt=fields.flag("rows_in_doubt", default=False) is True,
        target_model=fields.text("target_model"),
    )


class _Required:
    """The mark of a field that has no default."""


_REQUIRED = _Required()


class _Fields:
    """Looks a field up in `dflash_config`, then at the top, then in a copied `text_config`."""

    def __init__(self, raw: Mapping[str, Any]):
        self.places: list[Mapping[str, Any]] = [raw]
        own, copied = self.object("dflash_config"), self.object("text_config")
        self.places = [own, raw, copied]

    def value(self, name: str, default: Any = _REQUIRED) -> Any:
        for place in self.places:
            if place.get(name) is not None:
                return place[name]
        if default is _REQUIRED:
            raise DFlashError(
                f"The drafter's config.json lacks {name}: take it from the original checkpoint."
            )
        return default

    def object(self, name: str) -> dict[str, Any]:
        value = self.value(name, default={})
        if not isinstance(value, Mapping):
            raise DFlashError(f"The drafter's {name} must be a JSON object; it is {value!r}.")
        return dict(value)

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self.value(name, default)
        if value is not default and not _is_integer(value):
            raise DFlashError(f"The drafter's {name} must be a whole number; it is {value!r}.")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self.value(name, default)
        if value is not default and not is_number(value):
            raise DFlashError(f"The drafter's {name} must be a number; it is {value!r}.")
        return value

    def flag(self, name: str, default: bool | None) -> bool | None:
        value = self.value(name, default)
        if value is not None and not isinstance(value, bool):
            raise DFlashError(f"The drafter's {name} must be true or false; it is {value!r}.")
        return value

    def text(self, name: str) -> str | None:
        value = self.value(name, default=None)
        return None if value is None else str(value)

    def integers(self, name: str, default: Any = _REQUIRED) -> list[int]:
        value = self.value(name, default)
        values = [value] if _is_integer(value) else value
        if not isinstance(values, list | tuple) or not all(map(_is_integer, values)):
            raise DFlashError(f"The drafter's {name} must be whole numbers; it is {value!r}.")
        return list(values)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shape(shapes: Shapes, name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise DFlashError(f"The drafter's weights lack {name}: the checkpoint is incomplete.")
    shape = shapes[name]
    dimensions = 3 if name.endswith("base_kernel") else 1 if "norm" in name else 2
    if len(shape) != dimensions or 0 in shape:
        raise DFlashError(f"The drafter's {name} has the impossible shape {list(shape)}.")
    return shape


def _count_layers(shapes: Shapes) -> int:
    numbers = [int(m[1]) for m in (re.match(r"layers\.(\d+)\.", name) for name in shapes) if m]
    return max(numbers, default=-1) + 1


def _heads(shapes: Shapes, projection: str, head_dim: int) -> int:
    name = f"layers.0.self_attn.{projection}.weight"
    rows = _shape(shapes, name)[0]
    if rows % head_dim:
        raise DFlashError(f"The drafter's {name} has {rows} rows, not heads of {head_dim}.")
    return rows // head_dim


def _check_dimensions(fields: _Fields, shapes: Shapes, hidden: int, layers: int, taps: int) -> None:
    """Refuse what cannot be a mere copy of the target's config."""
    named = fields.integer("hidden_size", default=hidden)
    if named != hidden:
        raise DFlashError(
            f"The drafter's config.json says hidden_size {named}, but its weights have {hidden}."
        )
    named = fields.integer("num_hidden_layers", default=layers)
    if named not in (layers, fields.integer("num_target_layers", default=layers)):
        raise DFlashError(
            f"The drafter's config.json says num_hidden_layers {named}, but its weights hold "
            f"{layers} layers."
        )
    width = _shape(shapes, "fc.weight")[-1]
    if width != taps * hidden:
        raise DFlashError(
            f"The drafter's fc.weight takes {width / hidden:g} taps of {hidden}, but its "
            f"target_layer_ids list {taps}."
        )
    activation = fields.value("hidden_act", default="silu")
    if activation not in ("silu", "swish"):
        raise DFlashError(f"The drafter's hidden_act '{activation}' is not supported, only silu.")


def _second(fields: _Fields, shapes: Shapes) -> SecondConfig:
    """The shapes that DFlash 2 adds; only `selector_top_k` is not among the weights."""
    base = "layers.0.attention_conv.base_kernel"
    _, kernel_size, hidden = _shape(shapes, base)
    outputs = _shape(shapes, "layers.0.attention_conv.kernel_projection.weight")[0]
    vocabulary, rank = _shape(shapes, "candidate_selector.predecessor_codebook")
    groups, rest = divmod(outputs, 2 * kernel_size)
    if rest or not groups or hidden % groups:
        raise DFlashError(f"The drafter's {base} does not fit its kernel_projection.")
    top_k = fields.integer("selector_top_k")
    if vocabulary != fields.integer("vocab_size") or not 0 < top_k <= vocabulary:
        raise DFlashError(
            f"The drafter's candidate selector knows {vocabulary} tokens, which does not fit its "
            f"vocab_size and selector_top_k {top_k}."
        )
    return SecondConfig(kernel_size, hidden // groups, rank, top_k)


def _layer_types(fields: _Fields, layers: int) -> tuple[str, ...]:
    types = fields.value("layer_types", default=(FULL,) * layers)
    if not isinstance(types, list | tuple) or not all(isinstance(name, str) for name in types):
        raise DFlashError(f"The drafter's layer_types must be a list of names; it is {types!r}.")
    # A copy of the target's config lists the target's layers: harmless if all are of one type.
    return tuple(types[:1]) * layers if len(set(types)) == 1 else tuple(types)


def _rope(fields: _Fields) -> RopeConfig:
    """Flat `rope_theta` with `rope_scaling`, or all of it nested in `rope_parameters`.

    `partial_rotary_factor` is left out on purpose: configs copied from Qwen3.5 targets carry the
    target's, while drafters rotate whole heads.
    """
    scaling = fields.object("rope_parameters") or fields.object("rope_scaling")
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise DFlashError(
            f"The drafter's rope differs by layer type ({', '.join(scaling)}), which is not "
            "supported."
        )
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    trained = fields.integer("max_position_embeddings", default=None)
    if trained is not None and kind in ("llama3", "yarn"):
        scaling.setdefault("original_max_position_embeddings", trained)
    return RopeConfig(
        theta=_Fields(scaling).number("rope_theta", default=None) or fields.number("rope_theta"),
        kind=kind,
        scaling=scaling,
        interleaved=fields.flag("rope_is_neox_style", default=True) is False,
    )
