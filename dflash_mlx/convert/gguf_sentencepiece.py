"""SentencePiece's tokenizer in a GGUF file ('llama'), as byte-fallback BPE.

The file has pieces with scores, and no merges: SentencePiece joins, again and again, the two
neighbours whose joint piece scores best. So the merges are all ways in which a piece is two pieces,
in the order of its score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

from ..errors import DFlashError
from .gguf_file import GGUFFile

NORMAL = 1
"""ggml's type of an ordinary piece; others never take part in a merge."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def sentencepiece(file: GGUFFile) -> Tokenizer:
    """The tokenizer of the file, without its added tokens. Raises DFlashError if it is damaged."""
    tokens = file.strings("tokenizer.ggml.tokens")
    scores = file.metadata.get("tokenizer.ggml.scores", [])
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    if len(scores) != len(tokens) or len(types) != len(tokens):
        raise DFlashError(f"{file.path} has no score and type for each token: fetch another file.")
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise DFlashError(
            f"{file.path} has a damaged tokenizer (it lists a token twice): fetch another file."
        )
    unknown = int(file.number("tokenizer.ggml.unknown_token_id", 0))
    pieces = {t: i for t, i in ids.items() if types[i] == NORMAL}
    model = models.BPE(
        vocab=ids,
        merges=merges(pieces, scores),
        unk_token=tokens[unknown] if unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", SPACE)
    before = [normalizers.Prepend(SPACE), spaces] if prefix else [spaces]
    tokenizer.normalizer = normalizers.Sequence(before)
    after = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*after, decoders.Strip(" ", 1, 0)] if prefix else after)
    return tokenizer


def merges(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every split of a piece into two, the best piece's first; `scores` are by id."""
    found = []
    for piece, number in pieces.items():
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        both = [pair for pair in splits if pair[0] in pieces and pair[1] in pieces]
        both.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
        found.append((-scores[number], both))
    found.sort(key=lambda item: item[0])
    return [pair for _, both in found for pair in both]
