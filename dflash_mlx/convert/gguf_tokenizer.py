"""Build `tokenizer.json` and `tokenizer_config.json` from the tokenizer in a GGUF file's metadata.

GGUF holds the tokens, their types, the merges and the *name* of the rule that splits text into
words before merging; the rules themselves are in `PRE_TOKENIZERS`. A wrong rule gives wrong ids and
no error, so an unknown name is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, processors
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from ..errors import DFlashError
from .gguf_file import GGUFFile

# ggml's token types (gguf.TokenType): control tokens are special, user-defined ones only whole.
CONTROL, USER_DEFINED = 3, 4


def _words_by(pattern: str) -> Callable[[], PreTokenizer]:
    """Words by a regular expression, then bytes as letters."""

    def build() -> PreTokenizer:
        split = Split(Regex(pattern), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    """GPT-2's words, but every digit is a word of its own."""
    return Sequence([Digits(individual_digits=True), _gpt2()])


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES

PRE_TOKENIZERS: Mapping[str, Callable[[], PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _words_by(_WORDS % "{1,3}"),
    "qwen2": _words_by(_WORDS % ""),
}


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes; ids are those of the file."""
    kind = file.require("tokenizer.ggml.model")
    if kind != "gpt2":
        raise DFlashError(
            f"{file.path} has a tokenizer of kind '{kind}'; only byte-level BPE ('gpt2') is known."
        )
    rule = file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    if rule not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise DFlashError(
            f"{file.path} splits words by rule '{rule}'; only these are known: {known}."
        )

    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise DFlashError(f"{file.path} lists a token twice; its tokenizer is damaged.")
    # Llama 3 keeps a word that is a token even where the merges would build it otherwise.
    bpe = models.BPE(vocab=ids, merges=merges, ignore_merges=rule == "llama-bpe")
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = file.metadata.get("tokenizer.ggml.token_type", [])
    tokenizer.add_tokens(
        [
            AddedToken(token, special=type_ == CONTROL, normalized=False)
            for token, type_ in zip(tokens, types, strict=False)
            if type_ in (CONTROL, USER_DEFINED)
        ]
    )
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    if file.metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
        begin = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, bos)]
        )
    return tokenizer


def write_tokenizer(file: GGUFFile, folder: Path, config: Mapping[str, Any]) -> None:
    """Write both tokenizer files into `folder`; `config` is the model's own."""
    whole = build_tokenizer(file).to_str(pretty=True)
    (folder / "tokenizer.json").write_text(whole, encoding="utf-8")
    tokens = file.require("tokenizer.ggml.tokens")
    named = {
        f"{name}_token": tokens[file.metadata[key]]
        for name, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
            ("unk", "tokenizer.ggml.unknown_token_id"),
        )
        if key in file.metadata
    }
    content = {
        # This class takes tokenizer.json as it is; family classes would rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    if "tokenizer.chat_template" in file.metadata:
        content["chat_template"] = file.metadata["tokenizer.chat_template"]
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
