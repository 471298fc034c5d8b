"""Opening GGUF files: agreement with the reference reader, and files that are not whole."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from dflash_mlx.convert.gguf import plan_import
from dflash_mlx.convert.gguf_file import read_gguf
from dflash_mlx.convert.gguf_tokenizer import build_tokenizer
from dflash_mlx.errors import DFlashError
from tests.convert.tiny_gguf import tiny_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds every type of metadata and of tensors."""
    tiny = tiny_gguf("Q4_0", embedding="Q8_0")
    kinds = ["F16", "BF16", "F32", "Q4_1"]
    tiny.types |= {
        f"blk.{i % 2}.ffn_{('up', 'down')[i // 2]}.weight": k for i, k in enumerate(kinds)
    }
    tiny.metadata |= {"test.negative": [-1, 2], "test.halves": [0.5, 1.5], "test.flags": [True]}
    return tiny.write(tmp_path_factory.mktemp("gguf") / "whole.gguf")


def test_metadata_and_tensors_are_what_the_reference_reader_finds(whole: Path) -> None:
    ours, reference = read_gguf(whole), GGUFReader(whole)
    fields = {key: field.contents() for key, field in reference.fields.items()}
    assert ours.metadata == {k: v for k, v in fields.items() if not k.startswith("GGUF.")}
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for theirs in reference.tensors:
        tensor = ours.tensors[theirs.name]
        assert tensor.type == theirs.tensor_type.name
        assert tensor.shape == tuple(reversed(theirs.shape.tolist()))
        np.testing.assert_array_equal(tensor.data, theirs.data)


def test_a_file_cut_anywhere_is_refused(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    part = tmp_path / "part.gguf"
    for length in [*range(4, 200, 7), *range(200, len(content), len(content) // 60)]:
        part.write_bytes(content[:length])
        with pytest.raises(DFlashError, match="truncated or damaged"):
            read_gguf(part)


def test_damaged_bytes_never_end_in_a_traceback(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    chance = random.Random(1)
    damaged = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(chance.choice([1, 1, 8])):
            changed[chance.randrange(4, 9000)] = chance.randrange(256)
        damaged.write_bytes(changed)
        try:
            file = read_gguf(damaged)
            plan_import(file)
            build_tokenizer(file)
        except DFlashError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not a GGUF file"),
        (b"GGU", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(64), "not a GGUF file"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(16), "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "big-endian"),
    ],
)
def test_other_files_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(content)
    with pytest.raises(DFlashError, match=sentence):
        read_gguf(other)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(DFlashError, match="cannot be read"):
            read_gguf(place)


def test_a_tensor_written_twice_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf().write(tmp_path / "twice.gguf")
    first, second = b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight"
    path.write_bytes(path.read_bytes().replace(second, first))
    with pytest.raises(DFlashError, match=r"tensor blk\.0\.ffn_up\.weight twice"):
        read_gguf(path)
