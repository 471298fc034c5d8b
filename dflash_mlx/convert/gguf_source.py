"""A GGUF file as a source of conversions."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.nn as nn

from .gguf import Plan, plan_import
from .gguf_file import GGUFFile, read_gguf
from .gguf_types import FLOATS
from .report import Report, count_layers
from .source import Source


def gguf_report(file: GGUFFile, plan: Plan) -> Report:
    """What an import by the file's own types will do."""
    quantization: dict[str, Any] = plan.config.get("quantization", {})
    weights = [e for e in plan.entries if not e.name.endswith((".scales", ".biases"))]
    bits = {e.name: _bits(quantization, e.name) for e in weights if e.dtype == "U32"}
    layers: dict[str, int] = {}
    for width in bits.values():
        values = f"{width} bits in groups of 32 (affine)"
        layers[values] = layers.get(values, 0) + 1
    numbers = sum(
        e.nbytes * 8 // bits[e.name] if e.name in bits else e.nbytes // _item(e.dtype)
        for e in weights
    )
    return Report(
        f"{file.architecture} (GGUF) of {count_layers(plan.config['num_hidden_layers'])}",
        (plan.tensors, len(plan.entries)),
        (file_bytes(file), plan.nbytes),
        8 * plan.nbytes / numbers,
        layers,
        notes=list(plan.notes),
    )


def file_bytes(file: GGUFFile) -> int:
    """Size of all tensors, in bytes."""
    return sum(tensor.data.nbytes for tensor in file.tensors.values())


def usual_bits(plan: Plan) -> int:
    """The width of most weights."""
    quantization: dict[str, Any] = plan.config.get("quantization", {})
    return int(quantization.get("bits", 8 * _item(plan.entries[0].dtype)))


def sketch(path: Path) -> Source:
    """The model of a GGUF file with weights that are never computed: to tell what would be done."""
    file = read_gguf(path)
    plan = plan_import(file, floats=True)
    module = import_module(f"mlx_lm.models.{plan.config['model_type']}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(plan.config))
    if plan.config["tie_word_embeddings"]:
        model.pop("lm_head", None)  # Gemma's drops it when it sees the weights
    return Source(path.parent, model, plan.config, plan.tensors, file_bytes(file))


def losses(file: GGUFFile) -> list[str]:
    """A sentence where quantized weights will be quantized again."""
    count = sum(tensor.type not in FLOATS for tensor in file.tensors.values())
    return [f"{count} tensors were quantized already: without -q they are kept"] if count else []


def _bits(quantization: dict[str, Any], name: str) -> int:
    own = quantization.get(name.removesuffix(".weight"))
    return int((own or quantization)["bits"])


def _item(dtype: str) -> int:
    return 2 if dtype in ("F16", "BF16") else 4
