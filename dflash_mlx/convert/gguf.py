"""Import a GGUF target model: an MLX folder that mlx-lm loads, with the very numbers of the file.

Q4_0, Q4_1, Q8_0, F16, F32 and BF16 are kept exactly (`gguf_types.py`), K-quants nearly, where that
is asked for (`gguf_kquants.py`); other types are refused by name. What belongs to a family of
models is a table in `gguf_architectures.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DFlashError
from .gguf_architectures import ARCHITECTURES, Architecture, unpair
from .gguf_configs import short
from .gguf_file import GGUFFile, GGUFTensor, read_gguf
from .gguf_kquants import NEARLY, dequantized, describe
from .gguf_kquants import nearly as nearly_entries
from .gguf_tokenizer import control_tokens, token_id, write_tokenizer
from .gguf_types import AFFINE, FLOATS, GROUP, Rows, check_types, common_dtype, entries
from .safetensors_writer import Entry, write_safetensors

SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""GGUF's names of sampling defaults, and those of `generation_config.json`."""
TORCH_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


@dataclass(frozen=True)
class Plan:
    """What an import will write, known from the header alone."""

    entries: list[Entry]
    config: dict[str, Any]
    tensors: int  # of the GGUF file
    notes: tuple[str, ...] = ()  # what is not exact, a sentence a type

    @property
    def nbytes(self) -> int:
        """Size of the weights to be written, in bytes."""
        return sum(entry.nbytes for entry in self.entries)


def import_gguf(
    source: Path,
    folder: Path,
    *,
    widen: bool = False,
    nearly: bool = False,
    floats: bool = False,
    generation: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Write GGUF file `source` as an MLX model into the existing, empty `folder`.

    `widen`, `nearly` and `floats` are those of `plan_import`.
    `generation` are sampling defaults for its `generation_config.json`, instead of those that the
    file may have; `progress(done, total)`
    counts bytes of weights. Raises `DFlashError` for what cannot be imported exactly.
    """
    file = read_gguf(source)
    plan = plan_import(file, widen=widen, nearly=nearly, floats=floats)
    write_tokenizer(file, folder, plan.config)
    _write_json(folder / "config.json", plan.config)
    stops = {key: plan.config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    defaults = _sampling(file) if generation is None else generation
    _write_json(folder / "generation_config.json", {**stops, **defaults})
    weights = folder / "model.safetensors"
    write_safetensors(weights, plan.entries, metadata={"format": "mlx"}, progress=progress)
    return plan


def plan_import(
    file: GGUFFile, *, widen: bool = False, nearly: bool = False, floats: bool = False
) -> Plan:
    """Decide every tensor and the whole config, reading headers only (and small float tensors).

    All floats get one dtype: the smallest that holds each of them exactly, or float32 (`widen`),
    for machines that compute float16 slowly. `nearly` takes K-quants too. `floats` quantizes
    nothing: all weights become floats of that dtype.
    """
    architecture = _architecture(file)
    tensors = architecture.tensors(file)
    check_types(tensors.values(), NEARLY if nearly or floats else ())
    config = architecture.config(file)
    _check_names(file, architecture, config)

    dtype = "F32" if widen else common_dtype(tensors.values(), half=architecture.half)
    planned: list[Entry] = []
    bits: dict[str, int] = {}
    for name, tensor in tensors.items():
        stem, parameter = name.rsplit(".", 1)
        path = architecture.module(stem)
        assert path is not None, "checked above"
        order = _order(tensor, architecture.heads(stem, config), config["head_dim"])
        if floats and tensor.type not in FLOATS:
            planned.append(_as_floats(f"{path}.{parameter}", tensor, dtype, order))
        elif tensor.type in NEARLY:
            planned += nearly_entries(path, tensor, dtype, order)
            bits[path] = NEARLY[tensor.type]
        else:
            planned += entries(path, parameter, tensor, dtype, order)
            if tensor.type in AFFINE:
                bits[path] = AFFINE[tensor.type].bits
    config |= {"vocab_size": tensors["token_embd.weight"].shape[0]}
    config |= _token_ids(file, architecture.ends) | {"torch_dtype": TORCH_NAMES[dtype]}
    if bits:
        config["quantization"] = _quantization(bits)
    notes = () if floats else tuple(describe(tensors.values()))
    return Plan(planned, config, len(file.tensors), notes)


def _as_floats(name: str, tensor: GGUFTensor, dtype: str, order: Rows) -> Entry:
    kind = {"F16": np.float16, "F32": np.float32}[dtype]
    return Entry(name, dtype, tensor.shape, lambda: order(dequantized(tensor)).astype(kind))


def _architecture(file: GGUFFile) -> Architecture:
    try:
        return ARCHITECTURES[file.architecture]
    except KeyError:
        raise DFlashError(
            f"{file.path} holds a model of the family '{file.architecture}': "
            f"only these can be imported: {', '.join(ARCHITECTURES)}."
        ) from None


def _order(tensor: GGUFTensor, heads: int | None, head_dim: int) -> Rows:
    """How the rows of `tensor` are put in the published order."""
    if heads is None:
        return lambda rows: rows
    if tensor.shape[0] != heads * head_dim:
        raise DFlashError(
            f"Tensor {tensor.name} has {tensor.shape[0]} rows, not {heads} heads of {head_dim}:"
            " the file contradicts itself; fetch another."
        )
    return partial(unpair, heads=heads)


def _check_names(file: GGUFFile, architecture: Architecture, config: Mapping[str, Any]) -> None:
    """Every tensor has a place and every place its tensor, or `DFlashError` names the odd ones."""
    missing = architecture.expected(config) - set(file.tensors)
    if missing:
        raise DFlashError(f"{file.path} lacks {_some(missing)}: fetch a whole file.")
    layers = config["num_hidden_layers"]
    unknown = [name for name in file.tensors if not _has_place(name, architecture, layers)]
    if unknown:
        raise DFlashError(
            f"{file.path} holds {_some(unknown)} that have no place in this family: fetch another"
            " file."
        )


def _has_place(name: str, architecture: Architecture, layers: int) -> bool:
    if name in architecture.derived:
        return True
    stem, _, parameter = name.rpartition(".")
    if parameter not in ("weight", "bias") or architecture.module(stem) is None:
        return False
    parts = stem.split(".")
    return parts[0] != "blk" or (parts[1].isdigit() and int(parts[1]) < layers)


def _some(names: Any) -> str:
    """`names` counted, the first few spelled out."""
    names = sorted(names)
    return f"{len(names)} tensors ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"


def _token_ids(file: GGUFFile, names: Sequence[str]) -> dict[str, Any]:
    """bos, pad and the stop tokens (a list: a chat model may end a turn, or a text)."""
    ends = [token_id(file, name) for name in ("eos", "eot", "eom")]
    ends += control_tokens(file, names)
    return {
        "bos_token_id": token_id(file, "bos"),
        "pad_token_id": token_id(file, "padding"),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
    }


def _sampling(file: GGUFFile) -> dict[str, Any]:
    """Sampling defaults by the names of `generation_config.json`, where the file has any."""
    given = {
        theirs: file.number(f"general.sampling.{ours}")
        for ours, theirs in SAMPLING.items()
        if f"general.sampling.{ours}" in file.metadata
    }
    numbers = {k: v if isinstance(v, int) else short(v) for k, v in given.items()}
    return {"do_sample": True, **numbers} if numbers else {}


def _quantization(bits: Mapping[str, int]) -> dict[str, Any]:
    """mlx-lm's `quantization`: the commonest width for all, other layers by their path."""
    [(usual, _)] = Counter(bits.values()).most_common(1)
    others = {
        path: {"group_size": GROUP, "bits": width, "mode": "affine"}
        for path, width in bits.items()
        if width != usual
    }
    return {"group_size": GROUP, "bits": usual, "mode": "affine", **others}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
