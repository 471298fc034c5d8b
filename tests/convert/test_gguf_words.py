"""How text becomes words and pieces, by the rules that files name.

The rules `qwen2`, `llama-bpe` and `gpt-4o` were compared once with reference tokenizers over the
whole vocabularies, see docs/convert.md; here they have to keep what they did then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dflash_mlx.convert.gguf_file import read_gguf
from dflash_mlx.convert.gguf_tokenizer import build_tokenizer
from dflash_mlx.convert.gguf_words import WORDS
from dflash_mlx.engine.text import TokenBytes
from tests.convert.tiny_gguf import tiny_gguf

TEXT = "I'LL pay 12345\n\n  naïveCase /a//b\r\n"
SPLIT = {
    "gpt-2": "I|'|LL| pay| 12345|\n\n | naïveCase| /|a|//|b|\r\n",
    "smollm": "I|'|LL| pay| |1|2|3|4|5|\n\n | naïveCase| /|a|//|b|\r\n",
    "llama-bpe": "I|'LL| pay| |123|45|\n\n| | naïveCase| /|a|//|b|\r\n",
    "qwen2": "I|'LL| pay| |1|2|3|4|5|\n\n| | naïveCase| /|a|//|b|\r\n",
    "tekken": "I|'LL| pay| |1|2|3|4|5|\n\n| | naïve|Case| /|a|//|b|\r\n",
    "gpt-4o": "I'LL| pay| |123|45|\n\n| | naïve|Case| /|a|//|b|\r\n",
}


def words(rule: str, text: str) -> list[str]:
    """The words of `text`."""
    spans = [span for _, span in WORDS[rule].split().pre_tokenize_str(text)]
    return [text[begin:end] for begin, end in spans]


@pytest.mark.parametrize("rule", SPLIT)
def test_each_rule_splits_in_its_own_way(rule: str) -> None:
    assert words(rule, TEXT) == SPLIT[rule].split("|")


@pytest.mark.parametrize("rule", WORDS)
@given(text=st.text())
def test_no_rule_loses_a_character(rule: str, text: str) -> None:
    assert "".join(words(rule, text)) == text


def test_qwens_text_is_brought_to_its_normal_form(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.metadata["tokenizer.ggml.pre"] = "qwen2"
    tokenizer = build_tokenizer(read_gguf(tiny.write(tmp_path / "tiny.gguf")))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids


PIECES = {"▁": -9, "a": -10, "b": -11, "ab": -1, "ba": -2, "▁a": -3, "aba": -4, "abab": -5}
PIECES |= {"▁ab": -6, "bab": -7}
BYTES = [f"<0x{number:02X}>" for number in range(256)]
TOKENS = ["<unk>", "<bos>", "<turn>", "  ", "\n", *BYTES, *PIECES]
TYPES = [3, 3, 3, 4, 4] + [6] * 256 + [1] * len(PIECES)


def build(folder: Path, prefix: bool) -> Tokenizer:
    """A tiny SentencePiece vocabulary; `prefix` sets a space before a text."""
    tiny = tiny_gguf()
    tiny.metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.scores": [float(PIECES.get(token, -1000)) for token in TOKENS],
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tiny.metadata["tokenizer.ggml.add_bos_token"] = False
    return build_tokenizer(read_gguf(tiny.write(folder / "tiny.gguf")))


@pytest.fixture(scope="module")
def gemmas(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("gemma"), prefix=False)


def joined(text: str) -> list[str]:
    """SentencePiece's own way: join the best two neighbours, the first of equals, until none."""
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [parts[i] + parts[i + 1] for i in range(len(parts) - 1)]
        known = [(PIECES[pair], -i) for i, pair in enumerate(pairs) if pair in PIECES]
        if not known:
            return parts
        at = -max(known)[1]
        parts[at : at + 2] = [pairs[at]]


@given(text=st.text("ab ", max_size=12).filter(lambda text: "  " not in text))
def test_pieces_are_joined_by_their_scores(gemmas: Tokenizer, text: str) -> None:
    assert gemmas.encode(text).tokens == joined(text)


@given(text=st.text())
def test_any_text_comes_back_whole(gemmas: Tokenizer, text: str) -> None:
    """What no piece covers is spelled in bytes."""
    ids = gemmas.encode(text).ids
    if "▁" not in text:  # which SentencePiece takes for a space
        assert gemmas.decode(ids, skip_special_tokens=False) == text


def test_own_pieces_of_the_user_are_cut_out_whole(gemmas: Tokenizer) -> None:
    assert gemmas.encode("a  ab\n<turn>b").tokens == ["a", "  ", "ab", "\n", "<turn>", "b"]
    assert gemmas.decode(gemmas.encode("a<turn>b").ids) == "ab"


def test_a_prefix_stands_before_a_text_and_is_taken_away_again(tmp_path: Path) -> None:
    llamas = build(tmp_path, prefix=True)
    ids = llamas.encode("ab a").ids
    assert [TOKENS[i] for i in ids] == ["▁ab", "▁a"]
    assert llamas.decode(ids) == "ab a"


def test_the_bytes_of_pieces_are_known_one_by_one(tmp_path: Path) -> None:
    """So that a text can be shown while it grows."""
    from transformers import PreTrainedTokenizerFast

    for prefix in (True, False):
        wrapped = PreTrainedTokenizerFast(tokenizer_object=build(tmp_path, prefix))
        known = TokenBytes(wrapped)
        assert known.by_token
        assert known.of(TOKENS.index("▁ab")) == b" ab"
        assert known.of(TOKENS.index("<0xC3>")) == b"\xc3"


def test_it_begins_with_its_first_token_unless_the_file_says_no(tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tiny.metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.scores": [-1.0] * len(TOKENS),
        "tokenizer.ggml.bos_token_id": 1,
    }
    del tiny.metadata["tokenizer.ggml.add_bos_token"]
    tokenizer = build_tokenizer(read_gguf(tiny.write(tmp_path / "tiny.gguf")))
    assert tokenizer.encode("a").ids[0] == 1
