"""A tiny pair that talks letters and never ends by itself: for tests that look at a screen."""

from __future__ import annotations

import string
from pathlib import Path

import mlx.core as mx

from tests.tiny_folders import TinyPair, write_tiny_pair


def write_talking_pair(
    folder: Path, context: int = 1024, letters: str = string.ascii_lowercase + " "
) -> TinyPair:
    """Write a tiny pair whose target says `letters` only, unless it likes none of them."""
    pair = write_tiny_pair(folder, context)
    weights = pair.target / "model.safetensors"
    arrays = mx.load(str(weights))
    assert isinstance(arrays, dict)
    table = arrays["model.embed_tokens.weight"]  # tied: a row of zeros is never the likeliest
    said = {byte_token(letter) for letter in letters}
    keep = mx.array([[1.0 if row in said else 0.0] for row in range(table.shape[0])])
    arrays["model.embed_tokens.weight"] = table * keep.astype(table.dtype)
    mx.eval(arrays)
    mx.save_safetensors(str(weights), arrays, {"format": "mlx"})
    return pair


def byte_token(letter: str) -> int:
    """The token of an ASCII character in the tiny tokenizer, which sorts byte-level letters."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return alphabet.index("Ġ" if letter == " " else letter)
