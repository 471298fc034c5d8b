"""The tokenizer of a GGUF file: its words, its special tokens, and text that comes back whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer
from tokenizers import Tokenizer

from dflash_mlx.convert.gguf_file import read_gguf
from dflash_mlx.convert.gguf_tokenizer import build_tokenizer, write_tokenizer
from dflash_mlx.errors import DFlashError
from tests.convert.tiny_gguf import METADATA, TEMPLATE, TOKENS, tiny_gguf


def build(folder: Path, **changes: object) -> Tokenizer:
    """The tokenizer of a tiny file whose `tokenizer.ggml.*` metadata is changed."""
    tiny = tiny_gguf()
    tiny.metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return build_tokenizer(read_gguf(tiny.write(folder / "tiny.gguf")))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    """The written files as mlx-lm loads them."""
    folder = tmp_path_factory.mktemp("tokenizer")
    file = read_gguf(tiny_gguf().write(folder / "tiny.gguf"))
    write_tokenizer(file, folder, {"max_position_embeddings": 256})
    return load_tokenizer(folder)


def test_smollm_makes_every_digit_a_word(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.encode("the 12").tokens == ["t", "he", "Ġ", "1", "2"]
    other = build(tmp_path, pre="gpt-2")
    assert other.encode("the 12").tokens == ["t", "he", "Ġ", "12"]


def test_merges_apply_within_words(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(" the gravity").tokens == ["Ġthe", "Ġg", "ra", "vi", "ty"]


def test_ids_are_the_files_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == len(TOKENS)
    assert [tokenizer.token_to_id(token) for token in TOKENS] == list(range(len(TOKENS)))


def test_control_tokens_are_special_and_user_tokens_are_not(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>the<thought>x<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert TOKENS.index("<thought>") in ids
    assert tokenizer.decode(ids) == "the<thought>x"
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith("<|im_start|>the")


@given(st.text())
def test_any_text_comes_back_whole(loaded: TokenizerWrapper, text: str) -> None:
    # A text that spells a special token is that token; it comes back too, if asked for.
    ids = loaded.encode(text, add_special_tokens=False)
    assert loaded.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces ",
        "a\n\n\tb\r\n",
        "naïve café",
        "日本語",
        "🇫🇷👩‍👩‍👧",
        "don't , . !",
        "\ufffd",
        "½ ٣",
    ],
)
def test_awkward_texts_come_back_whole(loaded: TokenizerWrapper, text: str) -> None:
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text


def test_mlx_lm_finds_end_token_and_template(loaded: TokenizerWrapper) -> None:
    assert loaded.eos_token_ids == {2}
    assert loaded.chat_template == TEMPLATE
    assert loaded.pad_token == "<|im_end|>"
    assert loaded.bos_token == "<|im_start|>"
    prompt = loaded.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert prompt == "<|im_start|>the<|im_end|>"


def test_a_beginning_token_is_added_only_if_the_file_says_so(
    loaded: TokenizerWrapper, tmp_path: Path
) -> None:
    assert loaded.encode("the")[0] != 1
    assert build(tmp_path, add_bos_token=True).encode("the").ids[0] == 1


def test_llama3_keeps_whole_words_and_threes_of_digits(tmp_path: Path) -> None:
    tokens = [*TOKENS[:-1], "gravity"]  # a token that no merge builds
    merges = METADATA["tokenizer.ggml.merges"][:-1]
    llama3 = build(tmp_path, pre="llama-bpe", tokens=tokens, merges=merges)
    assert llama3.encode("gravity").tokens == ["gravity"]
    words = llama3.pre_tokenizer.pre_tokenize_str("I'M 12345")
    assert [word for word, _ in words] == ["I", "'M", "Ġ", "123", "45"]


def test_qwen2_splits_digits(tmp_path: Path) -> None:
    words = build(tmp_path, pre="qwen2").pre_tokenizer.pre_tokenize_str("a 12")
    assert [word for word, _ in words] == ["a", "Ġ", "1", "2"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pre": "deepseek-llm"}, "rule 'deepseek-llm'.*smollm"),
        ({"model": "bert"}, "kind 'bert'"),
        ({"model": "llama"}, "no score and type for each token"),
        ({"tokens": [*TOKENS, "a"]}, "lists a token twice"),
        ({"merges": ["a ß"]}, r"damaged tokenizer \(it merges"),
        ({"merges": ["ab"]}, r"damaged tokenizer \(it merges"),
        ({"bos_token_id": 4000}, "bos_token_id as 4000"),
        ({"tokens": 7}, "no list of texts as 'tokenizer.ggml.tokens'"),
    ],
)
def test_refused_in_one_sentence(changes: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match=sentence):
        build(tmp_path, **changes)
