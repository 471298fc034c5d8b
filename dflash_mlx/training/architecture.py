"""What the new drafter is: the `config.json` that it is trained, saved and exported with.

The config is written first, in z-lab's packaging, and the drafter is made from it as the loader
would: what is trained is what will be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..drafter import Drafter
from ..drafter.config import read_config
from ..drafter.dflash2 import SecondDrafter
from ..drafter.rope import SCALINGS
from ..errors import DFlashError, UsageError
from ..pair import Pair
from .second import ARCHITECTURE, second_config, second_shapes
from .settings import RunSettings

_TAPS = 5
_LAYERS, _BLOCK_SIZE, _RANK = 2, 8, 64
"""What a new drafter has where the settings do not say."""
_UNUSED = ("mask", "reserved", "unused", "empty", "dummy", "placeholder", "extra_id")
"""Parts of names of tokens that no text holds, the likeliest first."""


def default_taps(layers: int, count: int = _TAPS) -> list[int]:
    """z-lab's choice: `round(1 + i (layers - 4) / (count - 1))`, halves to even; one: the middle.

    Fewer than `count` where the target has not so many layers.
    """
    count = min(count, max(layers - 3, 1))
    if count == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)]


def choose_mask_token(pair: Pair) -> int:
    """A token that no text holds: named mask or reserved, or a row of the table without a token.

    Raises UsageError where there is none that can be told.
    """
    tokenizer = pair.tokenizer
    template = str(tokenizer.chat_template)
    taken = set(pair.stop_tokens) | {
        getattr(tokenizer, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad", "unk")
    }
    spoken = {
        number: str(token)
        for number, token in tokenizer.added_tokens_decoder.items()
        if number not in taken and str(token) not in template and number < pair.target.vocab_rows
    }
    for part in _UNUSED:
        for number, text in sorted(spoken.items()):
            if re.search(rf"(?<![a-z]){part}", text.lower()):
                return int(number)
    first_free = max(tokenizer.get_vocab().values()) + 1
    if first_free < pair.target.vocab_rows:
        return int(first_free)
    raise UsageError(
        "This tokenizer has no token that is plainly unused: choose one that no text holds, and"
        " give its id as --mask-token."
    )


def check_mask_token(mask: int, pair: Pair) -> None:
    """Raise UsageError for a mask that texts hold: a drafter could not tell it from what it is."""
    uses = {getattr(pair.tokenizer, f"{use}_token_id", None): use for use in ("pad", "bos", "eos")}
    uses |= dict.fromkeys(pair.stop_tokens - uses.keys(), "stop")
    if mask in uses:
        raise UsageError(
            f"Token {mask} cannot be the mask, since it is the target's {uses[mask]} token: give"
            " the id of one that no text holds as --mask-token, or choose another --init."
        )


def new_config(pair: Pair, settings: RunSettings, thinking: bool | None = None) -> dict[str, Any]:
    """`config.json` of a new drafter for the pair's target, by the settings.

    `thinking` is the mode of the conversations, if the template's switch was used for them.
    """
    target, of_target = pair.target, pair.target.text_config
    of_target_heads = int(of_target["num_attention_heads"])
    heads, layers = settings.heads or of_target_heads, settings.layers or _LAYERS
    taps = settings.taps or default_taps(target.num_layers)
    mask = settings.mask_token
    cap = of_target.get("final_logit_softcapping")
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": settings.kv_heads
        or int(of_target.get("num_key_value_heads") or heads),
        "head_dim": settings.head_dim
        or int(of_target.get("head_dim") or target.hidden_size // of_target_heads),
        "intermediate_size": settings.intermediate_size
        or int(of_target.get("intermediate_size") or 3 * target.hidden_size),
        "vocab_size": target.vocab_rows,
        "rms_norm_eps": float(of_target.get("rms_norm_eps", 1e-6)),
        **_rope(of_target),
        "max_position_embeddings": target.context_limit or 32768,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": bool(of_target.get("tie_word_embeddings", False)),
        "torch_dtype": "bfloat16",
        "block_size": settings.block_size or _BLOCK_SIZE,
        "num_target_layers": target.num_layers,
        "layer_types": ["full_attention"] * layers,
        "use_sliding_window": False,
        "sliding_window": None,
        **({} if thinking is None else {"enable_thinking": thinking}),
        "dflash_config": {
            "mask_token_id": choose_mask_token(pair) if mask is None else mask,
            "target_layer_ids": list(taps),
            **({"final_logit_softcapping": float(cap)} if cap else {}),
        },
    }
    return as_second(config, settings) if settings.dflash2 else config


def as_second(config: Mapping[str, Any], settings: RunSettings) -> dict[str, Any]:
    """A DFlash drafter's config as that of a DFlash 2, by the settings."""
    return second_config(config, settings.selector_rank or _RANK)


def make_drafter(config: Mapping[str, Any]) -> Drafter:
    """The drafter that a `config.json` of ours describes, its weights as yet meaningless."""
    second = config["architectures"] == [ARCHITECTURE]
    read = read_config(config, _shapes(config), second)
    return SecondDrafter(read) if second else Drafter(read)


def _rope(of_target: Mapping[str, Any]) -> dict[str, Any]:
    """The target's own rope, so that both count positions alike, where a drafter can have it."""
    nested = of_target.get("rope_parameters") or {}
    scaling = dict(nested or of_target.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or of_target.get("rope_theta") or 10000.0
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if any(isinstance(value, Mapping) for value in scaling.values()) or kind not in SCALINGS:
        kind = "default"
    return {
        "rope_theta": float(theta),
        "rope_scaling": None if kind == "default" else scaling,
    }


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, by the names of a checkpoint."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    taps = len(config["dflash_config"]["target_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (config["head_dim"],),
        "self_attn.k_norm.weight": (config["head_dim"],),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    if config["architectures"] == [ARCHITECTURE]:
        shapes |= second_shapes(config)
    return shapes


def check_fits(config: Mapping[str, Any], pair: Pair) -> None:
    """Raise DFlashError unless a drafter's config belongs to the pair's target."""
    target = pair.target
    check_mask_token(config["dflash_config"]["mask_token_id"], pair)
    if (
        config.get("hidden_size") != target.hidden_size
        or config.get("num_target_layers", target.num_layers) != target.num_layers
    ):
        raise DFlashError(
            f"This drafter was made for a target of {config.get('num_target_layers')} layers and a"
            f" hidden size of {config.get('hidden_size')}; this one has {target.num_layers} and"
            f" {target.hidden_size}."
        )
