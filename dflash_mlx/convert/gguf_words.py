"""How byte-level BPE tokenizers split text into words, by the names that llama.cpp gives the rules.

The regular expressions are those of the published `tokenizer.json` files; names of one rule stand
together. llama.cpp's `default` is not here: it stands for files whose rule nobody had recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split


@dataclass(frozen=True)
class Words:
    """A rule: how to split; whether a word that is a token is kept `whole`, whatever the merges
    would build; whether text is brought to Unicode's form NFC first.
    """

    split: Callable[[], PreTokenizer]
    whole: bool = False
    nfc: bool = False


def _by(pattern: str) -> Callable[[], PreTokenizer]:
    """Words by a regular expression, then bytes as letters."""

    def build() -> PreTokenizer:
        split = Split(Regex(pattern), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> PreTokenizer:
    """GPT-2's words, but every digit is a word of its own."""
    return Sequence([Digits(individual_digits=True), _gpt2()])


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    rf"|\p{{N}}%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)

_LLAMA3 = Words(_by(_GPT4 % "{1,3}"), whole=True)
_QWEN2 = Words(_by(_GPT4 % ""), nfc=True)
_GPT4O = Words(_by(_CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?", "{1,3}")))

WORDS: Mapping[str, Words] = {
    "gpt-2": Words(_gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), Words(_digits)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": Words(_by(_CASED % ("", "", "")), whole=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
