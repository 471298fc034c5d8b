"""Text from tokens: the pieces equal the whole, for every kind of decoder (report 62)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from dflash_mlx.engine.text import TextStream, TokenBytes

# What merges are learned from; the tokens that come of it split characters in many places.
CORPUS = [
    "the cat and the dog sat. ",
    "naïve café ",
    "日本語の文字 漢字仮名 ",
    "👩‍👩‍👧 🇫🇷 🏳️‍🌈 ",
] * 3
CLUSTERS = [
    "a",
    " ",
    "the cat",
    "é",
    "e\u0301",
    "日本",
    "👩‍👩‍👧",
    "🇫🇷",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "👋🏽",
    "ｆ",
    "\n",
    "▁",
    "ĠĊ",
    "नि",
]


def fast(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(["<s>", "<|im_end|>"])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "Zoë")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3, Qwen and SmolLM."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return fast(backend)


@cache
def llama() -> PreTrainedTokenizerFast:
    """As Llama 2 and Mistral: SentencePiece's BPE, bytes for what is not in the vocabulary."""
    return _sentencepiece(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ],
    )


@cache
def gemma() -> PreTrainedTokenizerFast:
    """As Gemma: no space is put before the text, and none is dropped."""
    return _sentencepiece(
        normalizers.Replace(" ", "▁"),
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()],
    )


def _sentencepiece(normalizer: Any, steps: list[Any]) -> PreTrainedTokenizerFast:
    entries = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdehnost.", "日", "本"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "c"), ("a", "t"), ("▁", "▁")]
    entries += ["".join(merge) for merge in merges]
    vocabulary = {entry: place for place, entry in enumerate(entries)}
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizer
    backend.decoder = decoders.Sequence(steps)
    return fast(backend)


@cache
def unigram() -> PreTrainedTokenizerFast:
    """As T5 and ALBERT: SentencePiece's Unigram with the Metaspace decoder."""
    pieces = [("<unk>", 0.0), ("▁the", -2.0), ("▁", -3.0)]
    pieces += [(c, -4.0) for c in sorted(set("".join(CLUSTERS + CORPUS)) - {" ", "▁"})]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return fast(backend)


def _words(model: Any, decoder: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        backend.decoder = decoder
    return fast(backend)


@cache
def wordpiece() -> PreTrainedTokenizerFast:
    """As BERT: a space between tokens unless the second begins with `##`."""
    entries = ["[UNK]", "the", "cat", "##s", "日", "##本", "👋", "##🏽", ".", "'"]
    vocabulary = {entry: place for place, entry in enumerate(entries)}
    return _words(models.WordPiece(vocabulary, unk_token="[UNK]"), decoders.WordPiece())


@cache
def no_decoder() -> PreTrainedTokenizerFast:
    """Tokens joined with spaces."""
    return _words(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "日本": 3}, "[UNK]"), None)


class PythonTokenizer:
    """A tokenizer written in Python, one token a byte, as tiktoken's: no backend, no decoder."""

    added_tokens_decoder: ClassVar = {256: SimpleNamespace(content="<|end|>", special=False)}
    all_special_ids: ClassVar = [256]

    def __len__(self) -> int:
        return 257

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], **options: bool) -> str:
        assert options == {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")


class KimiTokenizer(PythonTokenizer):
    """As Kimi's: vocabulary entries are written in GPT-2's alphabet, and the table is there."""

    byte_decoder: ClassVar = {chr(0x100 + byte): byte for byte in range(256)}

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return chr(0x100 + token_id)


@cache
def python_tokenizer() -> PythonTokenizer:
    return PythonTokenizer()


@cache
def kimi() -> KimiTokenizer:
    return KimiTokenizer()


@cache
def smollm2() -> PreTrainedTokenizerFast:
    """The embedded pair's own, where it is already on this machine."""
    return PreTrainedTokenizerFast.from_pretrained(SMOLLM2[0])


CACHE = Path("~/.cache/dflash-mlx").expanduser()
SMOLLM2 = [
    file.parent
    for file in sorted(CACHE.glob("**/tokenizer.json"))
    if "smollm2-135m" in file.as_posix() and file.with_name("config.json").is_file()
]
BY_TOKEN = [byte_level, llama, gemma, unigram, kimi, *([smollm2] if SMOLLM2 else [])]
BY_WINDOW = [wordpiece, no_decoder, python_tokenizer]
# SmolLM2's vocabulary lacks tokens for some bytes of rare characters, so it cannot encode them.
LOSSLESS = [make for make in BY_TOKEN if make not in (unigram, smollm2)] + [python_tokenizer]

MakeTokenizer = Callable[[], Any]
texts = st.lists(st.sampled_from(CLUSTERS) | st.text(max_size=3), max_size=12).map("".join)


def decode(tokenizer: Any, ids: Iterable[int]) -> str:
    """The tokenizer's own decode of all of it."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stream(tokenizer: Any, ids: list[int], block: int = 1, **options: bool) -> str:
    """The text of tokens that come in blocks, as rounds emit them."""
    text = TextStream(TokenBytes(tokenizer), **options)
    blocks = (ids[at : at + block] for at in range(0, len(ids), block))
    return "".join("".join(map(text.push, block)) for block in blocks) + text.finish()


@pytest.mark.parametrize("make", BY_TOKEN + BY_WINDOW)
@settings(max_examples=60)
@given(text=texts, block=st.integers(1, 16))
def test_the_pieces_are_the_whole_text(make: MakeTokenizer, text: str, block: int) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert stream(tokenizer, ids, block) == decode(tokenizer, ids)


@pytest.mark.parametrize("make", LOSSLESS)
@settings(max_examples=60)
@given(text=texts)
def test_a_text_that_was_encoded_comes_back(make: MakeTokenizer, text: str) -> None:
    """So no U+FFFD where there was none, every one that there was, and the leading space."""
    if make in (llama, gemma):
        text = text.replace("▁", " ")  # SentencePiece writes both alike
    tokenizer = make()
    assert stream(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("make", BY_TOKEN)
@settings(max_examples=60)
@given(data=st.data())
def test_any_tokens_make_the_text_of_their_bytes(make: MakeTokenizer, data: Any) -> None:
    """A model may say half a character: U+FFFD then, as in one decode of all bytes."""
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 20), max_size=16))
    tokens = TokenBytes(tokenizer)
    text = TextStream(tokens, continuing=True)
    shown = ""
    for count, token_id in enumerate(ids, start=1):
        shown += text.push(token_id)
        spelled = b"".join(map(tokens.of, ids[:count]))
        assert len(spelled) - 3 <= len(shown.encode()) or "\ufffd" in shown, "held back too long"
    assert shown + text.finish() == b"".join(map(tokens.of, ids)).decode("utf-8", "replace")


@pytest.mark.parametrize("make", LOSSLESS)
def test_a_character_is_shown_when_its_last_byte_is_there(make: MakeTokenizer) -> None:
    tokenizer = make()
    text = TextStream(TokenBytes(tokenizer))
    pieces = [text.push(i) for i in tokenizer.encode("👋x", add_special_tokens=False)]
    assert [piece for piece in pieces if piece] == ["👋", "x"]
    assert text.finish() == ""


@pytest.mark.parametrize("make", [byte_level, llama, python_tokenizer])
def test_an_unfinished_character_is_shown_as_one_replacement(make: MakeTokenizer) -> None:
    tokenizer = make()
    *ids, _ = tokenizer.encode("a👋", add_special_tokens=False)
    text = TextStream(TokenBytes(tokenizer))
    assert "".join(map(text.push, ids)) == "a"
    assert text.finish() == "\ufffd"


@pytest.mark.parametrize("make", [byte_level, llama, gemma, unigram, kimi])
def test_a_special_token_is_not_shown(make: MakeTokenizer) -> None:
    tokenizer = make()
    assert [TokenBytes(tokenizer).of(i) for i in tokenizer.all_special_ids] == [b""]


def test_a_special_token_of_a_tag_that_is_wanted_is_shown() -> None:
    tokenizer: Any = byte_level()
    tokens = TokenBytes(tokenizer, shown=["<s>thought"])
    assert tokens.of(tokenizer.convert_tokens_to_ids("<s>")) == b"<s>"
    assert tokens.of(tokenizer.all_special_ids[-1]) == b""


def test_a_hidden_token_before_the_first_word_does_not_bring_its_space_back() -> None:
    tokenizer = llama()
    ids = [tokenizer.convert_tokens_to_ids("<s>"), *tokenizer.encode("the cat")]
    assert stream(tokenizer, ids) == "the cat"


@pytest.mark.parametrize("make", [byte_level, llama, gemma, unigram])
def test_an_added_token_is_its_literal_text(make: MakeTokenizer) -> None:
    """Even where its letters are in GPT-2's alphabet for bytes, as "ë" is."""
    tokenizer = make()
    for entry in ("<think>", "Zoë"):
        token_id = tokenizer.convert_tokens_to_ids(entry)
        assert TokenBytes(tokenizer).of(token_id) == entry.encode()


@pytest.mark.parametrize("make", [llama, unigram])
def test_a_continued_text_keeps_the_space_of_its_first_word(make: MakeTokenizer) -> None:
    tokenizer = make()
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    assert stream(tokenizer, ids) == "the cat"
    assert stream(tokenizer, ids, continuing=True) == " the cat"


@pytest.mark.parametrize("make", BY_TOKEN)
def test_an_id_beyond_the_vocabulary_adds_nothing(make: MakeTokenizer) -> None:
    tokenizer = make()
    assert TokenBytes(tokenizer).of(len(tokenizer) + 5) == b""


@pytest.mark.parametrize("make", BY_TOKEN + BY_WINDOW)
def test_tokens_are_decoded_at_once_as_in_a_stream(make: MakeTokenizer) -> None:
    tokenizer = make()
    ids = tokenizer.encode("the cat 日本", add_special_tokens=False)
    assert TokenBytes(tokenizer).decode(ids) == decode(tokenizer, ids)


@pytest.mark.parametrize("make", BY_TOKEN)
def test_known_decoders_are_spelled_token_by_token(make: MakeTokenizer) -> None:
    assert TokenBytes(make()).by_token


@pytest.mark.parametrize("make", BY_WINDOW)
def test_other_decoders_are_decoded_in_windows(make: MakeTokenizer) -> None:
    assert not TokenBytes(make()).by_token


def test_a_decoder_of_known_steps_in_an_unknown_form_is_decoded_in_windows() -> None:
    backend = Tokenizer(models.WordLevel({"xay": 0, "[UNK]": 1}, "[UNK]"))
    backend.decoder = decoders.Sequence([decoders.Strip("x", 1, 0), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert not TokenBytes(tokenizer).by_token
    assert stream(tokenizer, [0, 0]) == "ayay"


def test_an_entry_is_a_byte_only_by_byte_fallback() -> None:
    backend = Tokenizer(models.WordLevel({"<0x41>": 0, "[UNK]": 1}, "[UNK]"))
    spelled = []
    for decoder in (decoders.Sequence([decoders.ByteFallback()]), decoders.Metaspace()):
        backend.decoder = decoder
        tokens = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=backend))
        spelled.append(tokens.of(0))
    assert spelled == [b"A", b"<0x41>"]


def test_mlx_lms_wrapper_is_a_tokenizer_too() -> None:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    tokenizer = byte_level()
    ids = tokenizer.encode("naïve 👩‍👩‍👧", add_special_tokens=False)
    assert stream(TokenizerWrapper(tokenizer), ids) == "naïve 👩‍👩‍👧"


def test_a_token_is_spelled_when_first_asked_for_and_once() -> None:
    tokenizer = byte_level()
    asked: list[int] = []

    class Spy:
        decoder = tokenizer.backend_tokenizer.decoder

        def id_to_token(self, token_id: int) -> str | None:
            asked.append(token_id)
            return tokenizer.backend_tokenizer.id_to_token(token_id)

    tokens = TokenBytes(SimpleNamespace(backend_tokenizer=Spy(), added_tokens_decoder={}))
    assert asked == []
    assert tokens.of(60) == tokens.of(60) != b""
    assert asked == [60]
