"""GGUF files of each family compute what mlx-lm's own model computes with the same numbers.

The names in the files are those that the `gguf` package gives the published checkpoints' tensors.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from dflash_mlx.convert.gguf import import_gguf
from dflash_mlx.convert.gguf_architectures import less_one
from dflash_mlx.convert.gguf_file import GGUFTensor
from dflash_mlx.convert.gguf_source import sketch
from dflash_mlx.errors import DFlashError
from tests.convert.tiny_gguf import METADATA, TOKENS, TinyGGUF
from tests.convert.tiny_models import tensors as written
from tests.tiny import randomize

FAMILIES = {
    "llama": ("llama", gguf.MODEL_ARCH.LLAMA),
    "qwen2": ("qwen2", gguf.MODEL_ARCH.QWEN2),
    "qwen3": ("qwen3", gguf.MODEL_ARCH.QWEN3),
    "qwen3moe": ("qwen3_moe", gguf.MODEL_ARCH.QWEN3MOE),
    "gemma3": ("gemma3_text", gguf.MODEL_ARCH.GEMMA3),
}
"""GGUF's name of a family: mlx-lm's, and the number by which the `gguf` package knows it."""
PROMPT = mx.array([[1, 40, 87, 3, 260, 9, 77]])
LAYERS = 2
CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": len(TOKENS),
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    # Experts, and Gemma's windows.
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "query_pre_attn_scalar": 16,
    "sliding_window": 4,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 1000.0,
    "attention_bias": True,
}
NUMBERS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "attention.sliding_window": 4,
    "attention.sliding_window_pattern": 2,
    "attention.key_length": 16,
    "rope.freq_base_swa": 1000.0,
}


def model_of(family: str) -> nn.Module:
    """A random model, its norms as bfloat16 would have them."""
    name, _ = FAMILIES[family]
    module = import_module(f"mlx_lm.models.{name}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict({"model_type": name, **CONFIG}))
    if family == "gemma3":
        model.sanitize({})
    randomize(model, seed=4)
    norms = [
        (n, (w - 1 if family == "gemma3" else w).astype(mx.bfloat16).astype(mx.float32))
        for n, w in tensors(model).items()
        if n.endswith("norm.weight")
    ]
    model.load_weights(norms, strict=False)
    return model


def tensors(model: nn.Module) -> dict[str, mx.array]:
    return tree_flatten(model.parameters(), destination={})  # type: ignore[return-value]


def gguf_of(family: str, matrices: str, keep: str = "F32") -> tuple[TinyGGUF, nn.Module]:
    """A file whose matrices are of type `matrices`, and the model with just those numbers."""
    model, names = model_of(family), gguf.get_tensor_name_map(FAMILIES[family][1], LAYERS)
    weights, types, rounded = {}, {}, []
    for name, array in tensors(model).items():
        published = name.replace("switch_mlp", "experts")
        stored = names.get_name(published, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        kind = matrices if array.ndim > 1 and "mlp.gate." not in name else keep
        rows = np.array(array)
        weights[stored] = rows + 1 if family == "gemma3" and "norm" in name else rows
        types[stored] = kind
        if kind != keep:
            ggml = GGMLQuantizationType[kind]
            rounded.append((name, mx.array(quants.dequantize(quants.quantize(rows, ggml), ggml))))
    model.load_weights(rounded, strict=False)
    metadata = {key.replace("llama.", f"{family}."): value for key, value in METADATA.items()}
    numbers = NUMBERS if family != "llama" else {}
    metadata |= {f"{family}.{key}": value for key, value in numbers.items()}
    return TinyGGUF(weights, types, metadata, family), model


def imported(tiny: TinyGGUF, folder: Path, **options: Any) -> Path:
    source = tiny.write(folder / "tiny.gguf")
    (folder / "mlx").mkdir()
    import_gguf(source, folder / "mlx", **options)
    return folder / "mlx"


@pytest.mark.parametrize("matrices", ["F32", "Q8_0", "Q5_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_computes_what_the_file_says(family: str, matrices: str, tmp_path: Path) -> None:
    """Llamas' rotary rows and their biases are put in order, others' are left; experts stacked."""
    tiny, model = gguf_of(family, matrices)

    made, config = load_model(imported(tiny, tmp_path, widen=True, nearly=True))

    assert config["model_type"] == FAMILIES[family][0]
    np.testing.assert_allclose(made(PROMPT), model(PROMPT), atol=2e-4)
    assert len(set(np.argmax(np.array(made(PROMPT))[0], axis=-1))) > 2


def test_gemmas_norms_are_the_published_ones_to_the_last_bit(tmp_path: Path) -> None:
    tiny, model = gguf_of("gemma3", "F32")
    weights = written(imported(tiny, tmp_path))
    for name, array in tensors(model).items():
        if name.endswith("norm.weight"):
            assert mx.array_equal(weights[name].astype(mx.float32), array), name


def test_a_norm_that_bfloat16_did_not_hold_is_as_near_as_float32_is() -> None:
    stored = np.array([1.0 + 2**-20, 1.0 + 0.1, 0.0], np.float32)
    tensor = GGUFTensor("output_norm.weight", "F32", (3,), stored)
    np.testing.assert_array_equal(less_one(tensor).data + np.float32(1), stored)


def test_gemma_is_never_float16(tmp_path: Path) -> None:
    """Its activations leave float16's range."""
    tiny, _ = gguf_of("gemma3", "Q8_0")
    made, config = load_model(imported(tiny, tmp_path))
    assert config["torch_dtype"] == "float32"
    assert made.model.layers[0].self_attn.q_proj.scales.dtype == mx.float32


def test_gemma_of_62_layers_divides_its_queries_in_its_own_way(tmp_path: Path) -> None:
    tiny, _ = gguf_of("gemma3", "F32")
    for name in [n for n in tiny.weights if n.startswith("blk.0.")]:
        for layer in range(2, 62):
            copy = name.replace("blk.0.", f"blk.{layer}.")
            tiny.weights[copy], tiny.types[copy] = tiny.weights[name], "F32"
    tiny.metadata |= {"gemma3.block_count": 62, "gemma3.attention.head_count": 4}
    config = json.loads((imported(tiny, tmp_path) / "config.json").read_text())
    assert config["query_pre_attn_scalar"] == 64 // 4


@pytest.mark.parametrize(
    ("family", "token", "ends"),
    [("qwen3", "<|endoftext|>", [2, 0]), ("llama", "<|eot_id|>", [2, 0])],
)
def test_all_tokens_that_end_an_answer_stop(
    family: str, token: str, ends: list[int], tmp_path: Path
) -> None:
    """A file names one; the published generation config has them all."""
    tiny, _ = gguf_of(family, "F32")
    tiny.metadata["tokenizer.ggml.tokens"] = [token, *TOKENS[1:]]
    folder = imported(tiny, tmp_path)
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == ends
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == ends


def test_a_qwen2_without_its_biases_is_not_whole(tmp_path: Path) -> None:
    tiny, _ = gguf_of("qwen2", "F32")
    del tiny.weights["blk.1.attn_k.bias"]
    with pytest.raises(DFlashError, match=r"lacks 1 tensors \(blk.1.attn_k.bias\)"):
        imported(tiny, tmp_path)


def test_qwen2_with_heads_of_another_width_is_refused(tmp_path: Path) -> None:
    tiny, _ = gguf_of("qwen2", "F32")
    tiny.metadata["qwen2.attention.key_length"] = 32
    with pytest.raises(DFlashError, match="heads of 32, which mlx-lm's qwen2 does not know"):
        imported(tiny, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sketch_has_the_modules_of_the_import(family: str, tmp_path: Path) -> None:
    """What --dry-run tells of."""
    tiny, model = gguf_of(family, "F32")
    drawn = sketch(tiny.write(tmp_path / "tiny.gguf")).model
    assert tensors(drawn).keys() == tensors(model).keys()
