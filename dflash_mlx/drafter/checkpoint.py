"""Reads a drafter's folder: `config.json` and safetensors, strictly and without running code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..errors import DFlashError
from ..model_folder import TensorInfo, read_header, read_json, weight_files
from .config import DrafterConfig, read_config
from .dflash2 import SecondDrafter
from .draft_vocab import mapped_vocab, read_draft_vocab
from .model import Drafter
from .packaging import Packaged, Packaging, check_borrowed, is_borrowed, unpack

DTYPES = {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16}
PACKED = "U32"
_HEAD = "lm_head.weight"


def load_drafter(
    folder: str | Path, dtype: mx.Dtype | None = None, *, lazy: bool = False
) -> Drafter:
    """The drafter in a local folder, all of it or a `DFlashError` that says what is wrong.

    `dtype` (float32, bfloat16 or float16; default: as `fc` is stored) becomes the type of every
    float, scales and biases of quantized layers included. `lazy` leaves the weights on the disk.
    """
    folder = Path(folder)
    raw = read_json(folder / "config.json")
    files = weight_files(folder)
    infos = {_name(name): info for file in files for name, info in read_header(file).items()}
    arrays = {
        _name(name): array
        for file in files
        for name, array in cast(dict[str, mx.array], mx.load(str(file))).items()
    }
    packaged = unpack(raw, infos, folder)
    config = read_config(packaged.config, _unquantized_shapes(raw, infos), packaged.second)
    config, infos, arrays = _settle_vocabulary(folder, packaged, config, infos, arrays)
    drafter = SecondDrafter(config) if packaged.second else Drafter(config)
    _quantize(drafter, raw, infos)
    _check_tensors(drafter, infos, folder)
    dtype = dtype or DTYPES[infos["fc.scales" if "fc.scales" in infos else "fc.weight"].dtype]
    weights = [
        (name, array if array.dtype == mx.uint32 else array.astype(dtype))
        for name, array in arrays.items()
    ]
    drafter.load_weights(weights)
    if not lazy:
        mx.eval(drafter.parameters())
    return drafter


Infos = dict[str, TensorInfo]
Arrays = dict[str, mx.array]


def _settle_vocabulary(
    folder: Path, packaged: Packaged, config: DrafterConfig, infos: Infos, arrays: Arrays
) -> tuple[DrafterConfig, Infos, Arrays]:
    """Which tokens are drafted and by whose head; then without what is only the target's again."""
    foreign = packaged.packaging is not Packaging.ZLAB
    ids = _draft_tokens(folder, config, arrays, foreign)
    own_head = ids is not None and _HEAD in infos and infos[_HEAD].shape[0] == len(ids)
    dropped = _dropped(config, infos, ids, own_head) if foreign else frozenset()
    if own_head and ids is not None:
        arrays = {**arrays, _HEAD: _by_token(arrays[_HEAD], ids)}
    vocabulary = tuple(sorted(ids)) if ids is not None else None
    return (
        replace(config, draft_vocab=vocabulary, own_head=own_head),
        {name: info for name, info in infos.items() if name not in dropped},
        {name: array for name, array in arrays.items() if name not in dropped},
    )


def _draft_tokens(
    folder: Path, config: DrafterConfig, arrays: Arrays, foreign: bool
) -> Sequence[int] | None:
    """The target's token of each of the drafter's, by tensors or by our file; None: all."""
    mapped = mapped_vocab(arrays, config.vocab_size) if foreign else None
    return read_draft_vocab(folder) if mapped is None else mapped


def _dropped(
    config: DrafterConfig, infos: Infos, ids: Sequence[int] | None, own_head: bool
) -> frozenset[str]:
    """What a foreign packaging holds besides the drafter: copies of the target's, and maps."""
    shapes = {name: info.shape for name, info in infos.items()}
    size = None if ids is None else len(ids)
    check_borrowed(shapes, config.hidden_size, config.vocab_size, size)
    kept = {_HEAD} if own_head else set()
    return frozenset(n for n in infos if is_borrowed(n) or n in ("d2t", "t2d")) - kept


def _by_token(head: mx.array, ids: Sequence[int]) -> mx.array:
    """The head's rows in the order of the target's tokens."""
    if list(ids) == sorted(ids):
        return head
    return head[mx.array(sorted(range(len(ids)), key=ids.__getitem__))]


def _name(name: str) -> str:
    """A tensor's name in the model: some writers of DFlash 2 add `.weight` to the codebooks."""
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name


def _unquantized_shapes(
    raw: Mapping[str, Any], infos: Mapping[str, TensorInfo]
) -> dict[str, tuple[int, ...]]:
    shapes = {name: info.shape for name, info in infos.items()}
    if "fc.scales" in shapes:
        quantization = raw.get("quantization") or {}
        own = quantization.get("fc")
        group = (own if isinstance(own, dict) else quantization).get("group_size", 64)
        rows, groups = shapes["fc.scales"]
        shapes["fc.weight"] = (rows, groups * group)
    return shapes


def _quantize(drafter: Drafter, raw: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> None:
    """Turn into quantized modules those that the checkpoint holds as such.

    MLX's `quantization` key gives `group_size`, `bits` and `mode` for all, and by a module's path
    for one.
    """
    quantization = raw.get("quantization")
    if not isinstance(quantization, dict):
        foreign = raw.get("quantization_config")
        if foreign:
            method = foreign.get("quant_method") if isinstance(foreign, dict) else foreign
            raise DFlashError(
                f"The drafter is quantized by '{method}', which MLX cannot read: convert the "
                "unquantized drafter."
            )
        return

    def settings(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in infos:
            return False
        own = quantization.get(path)
        return own if isinstance(own, dict) else True

    try:
        nn.quantize(
            drafter,
            group_size=quantization.get("group_size", 64),
            bits=quantization.get("bits", 4),
            mode=quantization.get("mode", "affine"),
            class_predicate=settings,
        )
    except (ValueError, TypeError) as error:
        reason = str(error).strip()
        raise DFlashError(f"The drafter's quantization cannot be read: {reason}") from error


def _check_tensors(drafter: Drafter, infos: Mapping[str, TensorInfo], folder: Path) -> None:
    """Refuse by name what is missing, unexpected, or of another shape or type than the model's."""
    parameters = cast(dict[str, mx.array], tree_flatten(drafter.parameters(), destination={}))
    wanted = {name: array.shape for name, array in parameters.items()}
    faults = {
        "lacks": [name for name in wanted if name not in infos],
        "has unexpected": [name for name in infos if name not in wanted],
    }
    for what, names in faults.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise DFlashError(
                f"The drafter in {folder} {what} tensors: {', '.join(sorted(names)[:3])}{more}."
            )
    for name, info in infos.items():
        if info.shape != wanted[name]:
            raise DFlashError(
                f"The drafter's {name} is {list(info.shape)}, but must be {list(wanted[name])}."
            )
        packed = name.endswith(".weight") and name.removesuffix("weight") + "scales" in infos
        if info.dtype not in ([PACKED] if packed else DTYPES):
            raise DFlashError(f"The drafter's {name} is stored as {info.dtype}, which is not read.")
