"""The first weights: random, the target's own last layers, or those of another drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model

from ..drafter import Drafter, load_drafter
from ..errors import DFlashError, UsageError
from ..target.model import Target
from .second import first_weight, is_second

Weights = dict[str, mx.array]
"""Float32 arrays by the names of a checkpoint."""

_SPREAD = 4.0
_MODULES = {
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
}


def flat(tree: Any) -> Weights:
    """A tree of arrays as one dictionary."""
    return cast(Weights, tree_flatten(tree, destination={}))


def nested(weights: Weights) -> dict[str, Any]:
    """One dictionary as a tree of arrays."""
    return cast("dict[str, Any]", tree_unflatten(list(weights.items())))


def random_weights(drafter: Drafter, target: Target, seed: int) -> Weights:
    """Normal, of variance 1 / (3 inputs); norms 1, but the last one as `quiet_norm` says."""
    weights = {}
    for name, array in flat(drafter.parameters()).items():
        key = mx.random.key(hash_name(name, seed))
        noise = mx.random.normal(array.shape, key=key) * (3 * array.shape[-1]) ** -0.5
        weights[name] = mx.ones(array.shape) if array.ndim == 1 else first_weight(name, noise)
    weights["norm.weight"] = quiet_norm(target, drafter.config.mask_token_id)
    return weights


def quiet_norm(target: Target, mask_token: int) -> mx.array:
    """A last norm [D] under which an untrained drafter does not insist on any token.

    Its hidden rows are near the mask's embedding, which a tied head recognizes: with a weight of 1,
    SmolLM2-135M's logits then spread by 16 and reach 126, for a loss of 57 instead of about
    ln(49152) = 10.8. So they are scaled to a spread of `_SPREAD` at most.
    """
    row = target.embed(mx.array([[mask_token]])).astype(mx.float32)
    logits = target.head(row * mx.rsqrt(row.square().mean())).astype(mx.float32)
    spread = cast(float, mx.sqrt(mx.var(logits)).item())
    return mx.full((target.hidden_size,), min(1.0, _SPREAD / max(spread, 1e-6)))


def hash_name(name: str, seed: int) -> int:
    """A number for a tensor, the same in every process."""
    number = seed & 0xFFFFFFFF
    for byte in name.encode():
        number = (number * 16777619 ^ byte) & 0xFFFFFFFF
    return number


def target_weights(drafter: Drafter, target: Target, seed: int) -> Weights:
    """The target's last layers, with `fc` passing on the last tap.

    The first of these layers finds its context as it was in the target if the last tap is the
    output of the layer before it: `hidden_norm` becomes that layer's input norm, so keys and
    values of the context come out the same. Head norms, where the target has none, keep the
    typical length of its queries and keys.
    """
    config, layers = drafter.config, target.body.layers
    weights = random_weights(drafter, target, seed)
    weights["norm.weight"] = final_norm(target)
    taken = layers[len(layers) - config.num_layers :]
    if len(taken) < config.num_layers:
        raise UsageError(f"The target has {len(layers)} layers, fewer than the drafter is to have.")
    width = config.hidden_size
    fc = mx.zeros((width, width * len(config.target_layer_ids)))
    place = config.target_layer_ids.index(max(config.target_layer_ids))
    fc[:, place * width : (place + 1) * width] = mx.eye(width)
    weights["fc.weight"] = weights["fc.weight"] * (fc == 0) * 0.1 + fc
    for number, layer in enumerate(taken):
        for name, array in _layer_weights(layer, config.head_dim, target).items():
            place_name = f"layers.{number}.{name}"
            if place_name not in weights or weights[place_name].shape != array.shape:
                raise UsageError(
                    f"The target's layers do not fit the drafter's ({name} is {array.shape}): leave"
                    " heads and widths as the target's, or begin with --init random."
                )
            weights[place_name] = array
    weights["hidden_norm.weight"] = weights["layers.0.input_layernorm.weight"]
    return weights


def drafter_weights(folder: Path, drafter: Drafter, target: Target, seed: int) -> Weights:
    """Another drafter's weights, which must be of the same shape; dequantized if need be.

    A DFlash drafter may become a DFlash 2: what that adds begins as if it were not there.
    """
    weights = flat(dequantize_model(load_drafter(folder, mx.float32)).parameters())
    wanted = random_weights(drafter, target, seed)
    weights = {name: wanted[name] for name in wanted if is_second(name)} | weights
    for name in wanted.keys() | weights.keys():
        if name not in weights or name not in wanted or weights[name].shape != wanted[name].shape:
            raise DFlashError(f"The drafter in {folder} is of another shape: see its {name}.")
    return weights


def final_norm(target: Target) -> mx.array:
    """The weight of the target's last norm [D], float32; ones where it is of another kind."""
    norm = getattr(target.body, "norm", None)
    if type(norm) is not nn.RMSNorm:
        return mx.ones((target.hidden_size,))
    return norm.weight.astype(mx.float32)


def plain_weight(module: nn.Module) -> mx.array:
    """A module's weight, dequantized if need be."""
    if "scales" not in module:
        return cast(mx.array, module.weight)
    return mx.dequantize(
        module.weight,
        module.scales,
        module.get("biases"),
        group_size=module.group_size,
        bits=module.bits,
        mode=getattr(module, "mode", "affine"),
    )


def _layer_weights(layer: nn.Module, head_dim: int, target: Target) -> Weights:
    """A decoder layer's weights under a drafter layer's names, float32.

    A drafter's norms multiply by their weights and its MLP is SwiGLU: the same names mean something
    else in Gemma, whose norms multiply by 1 + w and whose gate is GELU.
    """
    modules = {name.rpartition(".")[0] for name in flat(layer.parameters())}
    biased = any(name.endswith(".bias") for name in flat(layer.parameters()))
    of_another_kind = modules - {"self_attn.q_norm", "self_attn.k_norm"} != _MODULES or biased
    if of_another_kind or not _computes_alike(layer, target):
        raise UsageError(
            "The target's layers are of another kind than a drafter's: begin with --init random."
        )
    weights = {}
    for name in modules:
        parent, _, own = name.rpartition(".")
        module = getattr(getattr(layer, parent) if parent else layer, own)
        weights[f"{name}.weight"] = plain_weight(module).astype(mx.float32)
    for name in ("self_attn.q_norm", "self_attn.k_norm"):
        if name not in modules:
            typical = _typical(weights, name.replace("norm", "proj.weight"))
            weights[f"{name}.weight"] = mx.full((head_dim,), typical)
    return weights


def _computes_alike(layer: nn.Module, target: Target) -> bool:
    """Whether a decoder layer's norms are plain and its MLP's activation is a drafter's."""
    names = ("hidden_act", "hidden_activation")
    activations = {target.text_config.get(name) or "silu" for name in names}
    norms = [module for name, module in layer.named_modules() if name.endswith("norm")]
    return activations <= {"silu", "swish"} and all(type(norm) is nn.RMSNorm for norm in norms)


def _typical(weights: Weights, projection: str) -> float:
    """The root mean square that a projection of normed, otherwise white, rows has."""
    spread = weights[projection] * weights["input_layernorm.weight"]
    return cast(float, mx.sqrt(spread.square().sum(axis=1).mean()).item())
