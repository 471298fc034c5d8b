"""Build `tokenizer.json` and `tokenizer_config.json` from the tokenizer in a GGUF file's metadata.

Byte-level BPE ('gpt2'): GGUF holds the tokens, their types, the merges and the *name* of the rule
that splits text into words before merging; the rules themselves are in `gguf_words.py`. A wrong
rule gives wrong ids and no error, so an unknown name is refused. SentencePiece ('llama'): see
`gguf_sentencepiece.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from ..errors import DFlashError
from .gguf_file import GGUFFile
from .gguf_sentencepiece import sentencepiece
from .gguf_words import WORDS

# ggml's token types (gguf.TokenType): control tokens are special, user-defined ones only whole.
CONTROL, USER_DEFINED = 3, 4
TOKENS = "tokenizer.ggml.tokens"


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer that the metadata describes; ids are those of the file."""
    kind = file.metadata.get("tokenizer.ggml.model", "unnamed")
    if kind == "gpt2":
        tokenizer = _byte_level(file)
    elif kind == "llama":
        tokenizer = sentencepiece(file)
    else:
        raise DFlashError(
            f"{file.path} has a tokenizer of kind '{kind}': only byte-level BPE ('gpt2') and"
            " SentencePiece ('llama') are known."
        )
    tokenizer.add_tokens(_added_tokens(file))
    bos = token_id(file, "bos")
    # llama.cpp begins with it in SentencePiece's models even where the file does not say.
    if file.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") and bos is not None:
        begin = file.strings(TOKENS)[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, bos)]
        )
    return tokenizer


def write_tokenizer(file: GGUFFile, folder: Path, config: Mapping[str, Any]) -> None:
    """Write both tokenizer files into `folder`; `config` is the model's own."""
    whole = build_tokenizer(file).to_str(pretty=True)
    (folder / "tokenizer.json").write_text(whole, encoding="utf-8")
    tokens = file.strings(TOKENS)
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    numbers = {short: token_id(file, name) for short, name in names.items()}
    content: dict[str, Any] = {
        # This class takes tokenizer.json as it is; family classes would rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{short}_token": tokens[i] for short, i in numbers.items() if i is not None},
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None:
        content["chat_template"] = template
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def token_id(file: GGUFFile, name: str) -> int | None:
    """The id of a named token ("bos", "eos", "padding", ...), None if the file names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    number, count = int(file.number(key)), len(file.strings(TOKENS))
    if not 0 <= number < count:
        raise DFlashError(
            f"{file.path} gives {key} as {number}, outside its {count} tokens: fetch another file."
        )
    return number


def control_tokens(file: GGUFFile, names: Collection[str]) -> list[int]:
    """The ids of those control tokens that are among `names`."""
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    pairs = enumerate(zip(file.strings(TOKENS), types, strict=False))
    return [i for i, (token, type_) in pairs if type_ == CONTROL and token in names]


def _byte_level(file: GGUFFile) -> Tokenizer:
    rule = file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    words = WORDS.get(rule)
    if words is None:
        known = ", ".join(WORDS)
        raise DFlashError(
            f"{file.path} splits words by rule '{rule}': only these are known: {known}."
        )
    tokenizer = Tokenizer(_bpe(file, words.whole))
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = words.split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(file: GGUFFile, ignore_merges: bool) -> models.BPE:
    tokens = file.strings(TOKENS)
    ids = {token: number for number, token in enumerate(tokens)}
    halves = (merge.partition(" ") for merge in file.strings("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in halves]
    unknown = [pair for pair in merges if any(token not in ids for token in (*pair, "".join(pair)))]
    if unknown or len(ids) != len(tokens):
        what = f"it merges {unknown[0]}" if unknown else "it lists a token twice"
        raise DFlashError(f"{file.path} has a damaged tokenizer ({what}): fetch another file.")
    return models.BPE(vocab=ids, merges=merges, ignore_merges=ignore_merges)


def _added_tokens(file: GGUFFile) -> list[AddedToken]:
    """The tokens that are cut out of a text whole, before words are split."""
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    return [
        AddedToken(token, special=type_ == CONTROL, normalized=False)
        for token, type_ in zip(file.strings(TOKENS), types, strict=False)
        if type_ in (CONTROL, USER_DEFINED)
    ]
