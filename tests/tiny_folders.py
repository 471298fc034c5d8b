"""A tiny pair on disk, as a user would have one: for tests of loading and of the commands.

The target is a random Llama over bytes (each token is one byte or one special token) with a chat
template; what it says is noise. The drafter is random too, in z-lab's packaging.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dflash_mlx.backend import prepare
from dflash_mlx.drafter import load_drafter
from dflash_mlx.engine.options import Sampling
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, load_pair
from tests.tiny import randomize

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, LAYERS, VOCABULARY, MASK = 32, 2, 320, 259
LETTERS = range(64, 90)
"""The tokens of the 26 small letters."""
LETTERS_ONLY = Sampling(temperature=8.0, logit_bias=dict.fromkeys(LETTERS, 200.0))
"""Nearly any letter at any place: so hot that drafter and target often agree by their noise."""


@dataclass(frozen=True)
class TinyPair:
    """Where the two folders lie."""

    target: Path
    drafter: Path


def write_tiny_pair(folder: Path, context: int = 1024) -> TinyPair:
    """Write `folder/target` and `folder/drafter`."""
    target, drafter = folder / "target", folder / "drafter"
    write_target(target, context)
    write_drafter(drafter)
    return TinyPair(target, drafter)


@cache
def tiny_pair() -> Pair:
    """The tiny pair, loaded once for all tests that only ask it things."""
    with TemporaryDirectory() as folder:
        written = write_tiny_pair(Path(folder))
        names = PairFolders("tiny", written.target, "tiny-drafter", written.drafter)
        return load_pair(names, None, prepare(exact=sys.platform == "linux"))


def write_target(folder: Path, context: int = 1024) -> None:
    """A random Llama of 2 layers with a byte tokenizer."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": 258,
    }
    model = llama.Model(llama.ModelArgs.from_dict(config))
    randomize(model, seed=5)
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        {"format": "mlx"},
    )
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """Bytes are tokens 0 to 255, then the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "clean_up_tokenization_spaces": False,
                "chat_template": TEMPLATE,
            }
        )
    )


def write_drafter(folder: Path, hidden: int = HIDDEN, layers: int = LAYERS) -> None:
    """A random drafter of 1 layer, block 8, taps 0 and 1."""
    folder.mkdir(parents=True)
    key = mx.random.key(3)
    shapes = {
        "fc.weight": (hidden, 2 * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (32, hidden),
        "layers.0.self_attn.k_proj.weight": (16, hidden),
        "layers.0.self_attn.v_proj.weight": (16, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, 32),
        "layers.0.self_attn.q_norm.weight": (16,),
        "layers.0.self_attn.k_norm.weight": (16,),
        "layers.0.mlp.gate_proj.weight": (48, hidden),
        "layers.0.mlp.up_proj.weight": (48, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, 48),
    }
    weights = {}
    for name, shape in shapes.items():
        key, now = mx.random.split(key)
        noise = mx.random.normal(shape, key=now)
        weight = noise / shape[-1] ** 0.5 if len(shape) == 2 else 1 + 0.1 * noise
        weights[name] = weight.astype(mx.bfloat16)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "block_size": 8,
        "num_target_layers": layers,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]},
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    pair = write_tiny_pair(Path(sys.argv[1]))
    load_drafter(pair.drafter)
    print(pair.target, pair.drafter)
