"""Importing a GGUF target: the numbers, the order of rows, the config, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

from dflash_mlx.convert.gguf import import_gguf
from dflash_mlx.errors import DFlashError
from tests.convert.tiny_gguf import HIDDEN, LAYERS, TOKENS, TinyGGUF, tiny_gguf

QUANTIZED = ["Q4_0", "Q4_1", "Q8_0"]
FLOATS = ["F32", "F16", "BF16"]
DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
MODULES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PROMPT = mx.array([[1, 40, 87, 3, 260, 9, 77]])


def published(name: str) -> str:
    """`blk.1.attn_q.weight` is `model.layers.1.self_attn.q_proj.weight`."""
    parts = name.split(".")
    layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return f"{layer}{MODULES[parts[-2]]}.{parts[-1]}"


def reference_logits(tiny: TinyGGUF) -> mx.array:
    """An mlx-lm Llama with the file's numbers in the published order, in float32."""
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=len(TOKENS),
            tie_word_embeddings="output.weight" not in tiny.weights,
        )
    )
    model.load_weights([(published(n), mx.array(tiny.stored(n))) for n in tiny.weights])
    return model(PROMPT)


def imported(tiny: TinyGGUF, folder: Path, **options: Any) -> Path:
    """The MLX folder made of `tiny`."""
    source = tiny.write(folder / "tiny.gguf")
    (folder / "mlx").mkdir()
    import_gguf(source, folder / "mlx", **options)
    return folder / "mlx"


def arrays(path: Path) -> dict[str, mx.array]:
    return cast(dict[str, mx.array], mx.load(str(path)))


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [*QUANTIZED, *FLOATS])
def test_the_model_computes_what_the_file_says(kind: str, tied: bool, tmp_path: Path) -> None:
    tiny = tiny_gguf(kind, tied=tied)
    model, _ = load_model(imported(tiny, tmp_path, widen=True))
    np.testing.assert_allclose(model(PROMPT), reference_logits(tiny), atol=1e-5)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_the_files_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    tiny = tiny_gguf(kind)
    weights = arrays(imported(tiny, tmp_path) / "model.safetensors")
    bits = 8 if kind == "Q8_0" else 4
    for name in (n for n, type_ in tiny.types.items() if type_ == kind):
        path = published(name).removesuffix(".weight")
        scales, biases = (weights[f"{path}.{part}"] for part in ("scales", "biases"))
        assert scales.dtype == biases.dtype == mx.float16
        exact = mx.dequantize(
            weights[f"{path}.weight"],
            scales.astype(mx.float32),
            biases.astype(mx.float32),
            group_size=32,
            bits=bits,
        )
        np.testing.assert_array_equal(exact, tiny.stored(name), err_msg=name)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_packed_as_mlx_packs_them(kind: str, tmp_path: Path) -> None:
    name = "blk.1.ffn_down"
    tiny = tiny_gguf(kind)
    ours = arrays(imported(tiny, tmp_path) / "model.safetensors")
    mlx = arrays(tmp_path / "tiny.gguf")
    for part in ("weight", "scales", "biases"):
        theirs = mlx[f"{name}.{part}"]
        assert mx.array_equal(ours[f"model.layers.1.mlp.down_proj.{part}"], theirs), part


@pytest.mark.parametrize("kind", FLOATS)
def test_float_weights_keep_type_and_bits(kind: str, tmp_path: Path) -> None:
    tiny = tiny_gguf(kind)
    weights = arrays(imported(tiny, tmp_path) / "model.safetensors")
    for name in tiny.weights:
        assert weights[published(name)].dtype == DTYPES[kind], name
        exact = weights[published(name)].astype(mx.float32)
        np.testing.assert_array_equal(exact, tiny.stored(name), err_msg=name)


@pytest.mark.parametrize(
    ("kind", "norm", "dtype"),
    [
        ("Q4_1", 1.5, "float16"),
        ("Q4_1", 1 + 2**-20, "float32"),  # float16 has no such number
        ("Q8_0", 1e-30, "float32"),
        ("F16", 70000.0, "float32"),
        ("BF16", 70144.0, "bfloat16"),
        ("BF16", 1 + 2**-9, "float32"),
    ],
)
def test_all_floats_share_the_smallest_dtype_that_is_exact(
    kind: str, norm: float, dtype: str, tmp_path: Path
) -> None:
    tiny = tiny_gguf(kind)
    tiny.weights["output_norm.weight"][7] = norm
    folder = imported(tiny, tmp_path)
    model, config = load_model(folder)
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    floats = {array.dtype for _, array in parameters if array.dtype != mx.uint32}
    assert floats == {getattr(mx, dtype)}
    assert config["torch_dtype"] == dtype
    assert model.model.norm.weight[7].item() == np.float32(norm)


def test_the_config_is_the_files_own(tmp_path: Path) -> None:
    config = config_of(imported(tiny_gguf("Q4_0", embedding="Q8_0"), tmp_path))
    assert config.pop("quantization") == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
    }
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 256,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": len(TOKENS),
        "bos_token_id": 1,
        "pad_token_id": 2,
        "eos_token_id": [2],
        "torch_dtype": "float16",
    }


def test_a_layer_of_another_width_is_read_with_its_own(tmp_path: Path) -> None:
    tiny = tiny_gguf("Q4_1", embedding="Q8_0")
    tiny.types |= {"blk.0.ffn_up.weight": "Q8_0", "blk.1.attn_q.weight": "F16"}
    model, _ = load_model(imported(tiny, tmp_path, widen=True))
    assert model.layers[0].mlp.up_proj.bits == 8
    assert model.layers[1].mlp.up_proj.bits == 4
    assert not hasattr(model.layers[1].self_attn.q_proj, "bits")
    np.testing.assert_allclose(model(PROMPT), reference_logits(tiny), atol=1e-5)


def test_every_end_token_that_the_file_names_stops(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.metadata["tokenizer.ggml.eot_token_id"] = 0
    folder = imported(tiny, tmp_path, generation={"temperature": 0.5})
    generation = json.loads((folder / "generation_config.json").read_text())
    assert config_of(folder)["eos_token_id"] == generation["eos_token_id"] == [2, 0]
    assert generation["temperature"] == 0.5


def test_absent_numbers_take_the_families_defaults(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    del tiny.metadata["llama.rope.freq_base"]
    config = config_of(imported(tiny, tmp_path))
    assert config["rope_theta"] == 10000.0


def test_linear_and_llama3_scaling_of_positions_are_kept(tmp_path: Path) -> None:
    linear, third = tiny_gguf(), tiny_gguf()
    linear.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    third.metadata["llama.rope.freq_base"] = 500000.0
    # Published for Llama 3.1: wavelengths beyond 8192 are 8 times longer, those below 2048 stay.
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 16, 2) / 16)
    blend = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    third.weights["rope_freqs.weight"] = (1 / ((1 - blend) / 8 + blend)).astype(np.float32)
    third.types["rope_freqs.weight"] = "F32"
    for name, tiny in (("linear", linear), ("llama3", third)):
        (tmp_path / name).mkdir()
        scaling = config_of(imported(tiny, tmp_path / name))["rope_scaling"]
        assert scaling["rope_type"] == name
        assert scaling["factor"] == {"linear": 2, "llama3": 8}[name]
    load_model(tmp_path / "llama3" / "mlx")


def test_yarn_keeps_its_numbers(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    tiny.metadata["llama.rope.scaling.original_context_length"] = 64
    assert config_of(imported(tiny, tmp_path))["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def test_sampling_defaults_come_along(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.metadata |= {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    folder = imported(tiny, tmp_path)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_k"]) == (0.6, 20)
    assert generation["do_sample"] is True


def test_progress_counts_the_bytes_of_the_weights(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    imported(tiny_gguf("Q4_0"), tmp_path, progress=lambda *bytes_: told.append(bytes_))
    size = (tmp_path / "mlx" / "model.safetensors").stat().st_size
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] < size
    assert len({total for _, total in told}) == 1


def without(name: str) -> TinyGGUF:
    tiny = tiny_gguf()
    del tiny.weights[name]
    return tiny


def with_metadata(**changes: Any) -> TinyGGUF:
    tiny = tiny_gguf()
    tiny.metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return tiny


def with_tensor(name: str, rows: int = HIDDEN) -> TinyGGUF:
    tiny = tiny_gguf()
    tiny.weights[name] = np.ones((rows, HIDDEN), dtype=np.float32)
    tiny.types[name] = "F32"
    return tiny


REFUSED = {
    "a missing tensor": (
        without("blk.1.ffn_up.weight"),
        r"lacks 1 tensors \(blk.1.ffn_up.weight\)",
    ),
    "an unknown tensor": (
        with_tensor("blk.0.ssm_a.weight"),
        r"holds 1 tensors \(blk.0.ssm_a.weight\) that have no place",
    ),
    "a layer too many": (
        with_tensor("blk.2.ffn_up.weight"),
        r"\(blk.2.ffn_up.weight\) that have no place",
    ),
    "a layer without number": (with_tensor("blk.x.ffn_up.weight"), "no place in this family"),
    "rows that are no heads": (
        with_metadata(llama__attention__key_length=8),
        "attn_q.weight has 64 rows, not 4 heads of 8",
    ),
    "a mixture of experts": (with_metadata(llama__expert_count=8), "mixture of experts"),
    "half rotated heads": (with_metadata(llama__rope__dimension_count=8), "part of each head"),
    "an unknown scaling": (with_metadata(llama__rope__scaling__type="longrope"), "'longrope'"),
    "a scaling by nothing": (
        with_metadata(llama__rope__scaling__type="yarn"),
        "no single number as 'llama.rope.scaling.factor'",
    ),
    "a list for a number": (
        with_metadata(llama__attention__head_count_kv=[2, 1]),
        "no single number as 'llama.attention.head_count_kv'",
    ),
    "unknown positions": (with_tensor("rope_freqs.weight"), "other than those of Llama 3.1"),
    "an end token out of range": (with_metadata(tokenizer__ggml__eos_token_id=9999), "outside its"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_that_names(case: str, tmp_path: Path) -> None:
    tiny, sentence = REFUSED[case]
    with pytest.raises(DFlashError, match=sentence):
        imported(tiny, tmp_path)


def test_a_scale_too_large_for_mlx_is_refused_by_name(tmp_path: Path) -> None:
    tiny = tiny_gguf("Q8_0")
    tiny.weights["blk.0.ffn_up.weight"][3, 5] = 127 * 600  # its bias would be -128 * 600
    with pytest.raises(DFlashError, match=r"Tensor blk\.0\.ffn_up\.weight has block scales"):
        imported(tiny, tmp_path)


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.architecture = "mamba"
    with pytest.raises(DFlashError, match=r"family 'mamba'.*can be imported: llama, qwen2, qwen3"):
        imported(tiny, tmp_path)


def test_types_that_cannot_be_exact_are_named_and_counted(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.types |= {"blk.0.ffn_up.weight": "Q5_1", "blk.1.ffn_up.weight": "Q5_1"}
    tiny.types |= {"token_embd.weight": "Q5_0"}
    with pytest.raises(DFlashError, match=r"\(1 of type Q5_0, 2 of type Q5_1\)"):
        imported(tiny, tmp_path)
