"""From token ids to text that can be shown while it grows.

A token is a string of bytes, not of characters: "é" or a flag may span several tokens. So each
token is spelled as bytes by the rules of the tokenizer's own decoder, and the bytes of the whole
stream go through one incremental UTF-8 decoder, which holds an unfinished character back. No
piece ever has to be taken back, and a U+FFFD that is shown is one that the model meant, or bytes
that are no UTF-8.

Which decoders (`tokenizer.json`, key `decoder`) are spelled token by token:

* `ByteLevel` (GPT-2, Llama 3, Qwen, SmolLM, gpt-oss), and tokenizers written in Python that carry
  GPT-2's table as `byte_decoder` (Kimi);
* SentencePiece's: `Metaspace` alone, or any `Sequence` of `Replace` (of a string), `ByteFallback`,
  `Fuse` and a final `Strip` of one leading character (Llama 2, Mistral, Gemma, Phi-3).

Anything else (`WordPiece`, `BPEDecoder`, `CTC`, no decoder, tokenizers in Python without the
table) is decoded in windows of a few tokens by the tokenizer itself: slower, and right.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from ..errors import UsageError

Spell = Callable[[str, bool], bytes]
"""`(entry of the vocabulary, whether it begins the text) -> bytes`."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_ENTRY = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def check_text(text: str) -> None:
    """Raise UsageError for what a shell or a file gave that is no text: bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("The input is not valid UTF-8: convert it first (iconv does).") from error


class TokenBytes:
    """The bytes of each token of a vocabulary, spelled when first asked for.

    `tokenizer` is a Hugging Face tokenizer or mlx-lm's wrapper of one. Special tokens are hidden
    (they spell `b""`), except those that occur in one of the strings `shown`: for thinking tags
    that a vocabulary declares special.
    """

    def __init__(self, tokenizer: Any, shown: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = tuple(shown)
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._table: Mapping[str, int] | None = None
        self._spell = self._choose_spelling()
        self._known: dict[int, bytes] = {}

    @property
    def by_token(self) -> bool:
        """Whether each token has bytes of its own; if not, `decode_window` sees its neighbours."""
        return self._spell is not None

    def of(self, token_id: int, first: bool = False) -> bytes:
        """Return the bytes that a token adds to the text; `b""` beyond the vocabulary.

        Models often have more rows than the tokenizer has entries, so an id beyond the vocabulary
        is no error. With `first` the token begins the text, where SentencePiece's decoders drop
        the space of the first word. A partial character is returned as it is.
        """
        if first:
            return self._spelled(token_id, first=True)
        if token_id not in self._known:
            self._known[token_id] = self._spelled(token_id, first=False)
        return self._known[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, from the beginning of a text."""
        stream = TextStream(self)
        return "".join(map(stream.push, token_ids)) + stream.finish()

    def decode_window(self, token_ids: Sequence[int]) -> str:
        """Return what the tokenizer itself makes of these tokens, all special ones hidden."""
        return self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _spelled(self, token_id: int, first: bool) -> bytes:
        added = self._added.get(token_id)
        if token_id in self._special:
            tag = added.content if added is not None else ""
            return tag.encode() if any(tag in shown for shown in self._shown) else b""
        if added is not None and self._table is not None:
            return added.content.encode()
        if self._spell is None:
            return self.decode_window([token_id]).encode()
        entry = self._entry(token_id)
        return self._spell(entry, first) if entry is not None else b""

    def _entry(self, token_id: int) -> str | None:
        if self._backend is not None:
            return self._backend.id_to_token(token_id)
        if token_id >= len(self._tokenizer):
            return None
        return self._tokenizer.convert_ids_to_tokens(token_id)

    def _choose_spelling(self) -> Spell | None:
        if self._backend is None:
            self._table = getattr(self._tokenizer, "byte_decoder", None)
        else:
            steps = _decoder_steps(self._backend)
            if [step["type"] for step in steps] != ["ByteLevel"]:
                return _sentencepiece_spelling(steps)
            self._table = _BYTE_ALPHABET
        return _byte_level_spelling(self._table) if self._table is not None else None

    @cached_property
    def _added(self) -> Mapping[int, Any]:
        return self._tokenizer.added_tokens_decoder

    @cached_property
    def _special(self) -> frozenset[int]:
        """What `decode` hides: by the backend's own flags, or in Python by the named tokens."""
        if self._backend is None:
            return frozenset(self._tokenizer.all_special_ids)
        return frozenset(token_id for token_id, added in self._added.items() if added.special)


class TextStream:
    """Tokens in, one at a time; text out, as soon as its characters are whole.

    The pieces joined are `b"".join(bytes of the tokens).decode("utf-8", "replace")`, which for
    valid text is the tokenizer's own decode of all tokens with special ones hidden. `continuing`
    says that the tokens go on with a text already there, so that the space of a first word, which
    SentencePiece's decoders drop at the start of a text, is kept; a tokenizer that has to be
    decoded in windows cannot do that, and drops it.
    """

    def __init__(self, tokens: TokenBytes, *, continuing: bool = False) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._speller: _Speller = (
            _TokenSpeller(tokens, continuing) if tokens.by_token else _WindowSpeller(tokens)
        )

    def push(self, token_id: int) -> str:
        """Return the characters that this token finishes; often all of it, sometimes none."""
        return self._utf8.decode(self._speller.push(token_id))

    def finish(self) -> str:
        """Return what was held back: U+FFFD for a character that never was finished, or nothing."""
        return self._utf8.decode(self._speller.finish(), final=True)


class _Speller(Protocol):
    """What turns a stream of tokens into a stream of bytes."""

    def push(self, token_id: int) -> bytes: ...

    def finish(self) -> bytes: ...


class _TokenSpeller:
    """Bytes token by token; only the first that is shown depends on its place."""

    def __init__(self, tokens: TokenBytes, begun: bool) -> None:
        self._tokens = tokens
        self._begun = begun

    def push(self, token_id: int) -> bytes:
        spelled = self._tokens.of(token_id)
        if self._begun or not spelled:  # a hidden token begins nothing
            return spelled
        self._begun = True
        return self._tokens.of(token_id, first=True)

    def finish(self) -> bytes:
        return b""


class _WindowSpeller:
    """Bytes by decoding a short window: the last tokens shown, as context, and those pending."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> bytes:
        self._pending.append(token_id)
        text = self._text()
        if not text or text.endswith(_REPLACEMENT):  # perhaps the first half of a character
            return b""
        self._context, self._pending = self._pending, []
        return text.encode()

    def finish(self) -> bytes:
        text = self._text()
        self._context, self._pending = [], []
        return text.encode()

    def _text(self) -> str:
        shown = self._tokens.decode_window(self._context)
        return self._tokens.decode_window(self._context + self._pending)[len(shown) :]


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    """Return a `tokenizers` decoder as a flat list of its steps, without the vocabulary's cost."""
    if backend.decoder is None:
        return [{"type": "none"}]
    state = json.loads(backend.decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _byte_level_spelling(table: Mapping[str, int]) -> Spell:
    """Spell entries written in an alphabet that has one character for each byte (GPT-2)."""

    def spell(entry: str, first: bool) -> bytes:
        try:
            return bytes(table[character] for character in entry)
        except KeyError:  # an entry outside the alphabet stands for itself
            return entry.encode()

    return spell


def _sentencepiece_spelling(steps: list[dict[str, Any]]) -> Spell | None:
    """Spell entries with a visible space and `<0xNN>` for bytes; None if a step is unknown.

    The semantics of each step are those of the `tokenizers` library: `Metaspace` drops every
    visible space of the text's first token, `Strip` after `Fuse` one character of the text.
    """
    spaces: list[tuple[str, str]] = []
    byte_fallback = False
    dropped_from_first = stripped = ""
    fused = False
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
                spaces.append((mark, " "))
                dropped_from_first = "" if scheme == "never" else mark
            case {"type": "Replace", "pattern": {"String": mark}, "content": content}:
                spaces.append((mark, content))
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": stripped, "start": 1, "stop": 0} if fused:
                pass
            case _:
                return None

    def spell(entry: str, first: bool) -> bytes:
        if byte_fallback and (byte := _BYTE_ENTRY.fullmatch(entry)):
            return bytes.fromhex(byte[1])
        if first:
            entry = entry.replace(dropped_from_first, "")
        for mark, content in spaces:
            entry = entry.replace(mark, content)
        return (entry.removeprefix(stripped) if first else entry).encode()

    return spell


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 for itself, U+0100 onwards for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTE_ALPHABET = _byte_alphabet()
