"""config.toml: one key a flag; what is wrong in it is an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_mlx.chat.settings import read_defaults
from dflash_mlx.commands.arguments import ChatArguments
from dflash_mlx.errors import UsageError


def read(folder: Path, content: str) -> dict[str, object]:
    path = folder / "config.toml"
    path.write_text(content, encoding="utf-8")
    return read_defaults(path, ChatArguments)


def test_no_file_has_no_defaults(tmp_path: Path) -> None:
    assert read_defaults(tmp_path / "config.toml", ChatArguments) == {}


def test_keys_are_flags_without_their_dashes(tmp_path: Path) -> None:
    content = """
        model = "org/name"
        max-tokens = 100
        top_p = 1
        temperature = 0.5
        no-draft = true
        thinking = false
        dtype = "bfloat16"
        stop = ["a", "b"]
        cache-dir = "/a/b"
        kv-bits = 4
    """
    assert read(tmp_path, content) == {
        "model": "org/name",
        "max_tokens": 100,
        "top_p": 1,
        "temperature": 0.5,
        "no_draft": True,
        "thinking": False,
        "dtype": "bfloat16",
        "stop": ["a", "b"],
        "cache_dir": "/a/b",
        "kv_bits": 4,
    }


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(UsageError, match=r"config\.toml cannot be read: Is a directory"):
        read_defaults(tmp_path / "config.toml", ChatArguments)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("temprature = 1", "there is no setting temprature: did you mean temperature?"),
        ("json = true", r"there is no setting json\."),
        ("[chat]\nmodel = 'm'", "there is no setting chat"),
        ("max-tokens = 'many'", "max-tokens cannot be 'many'"),
        ("max-tokens = 1.5", "max-tokens cannot be 1.5"),
        ("max-tokens = true", "max-tokens cannot be True"),
        ("temperature = true", "temperature cannot be True"),
        ("plain = 1", "plain cannot be 1"),
        ("dtype = 'int8'", "dtype cannot be 'int8'"),
        ("stop = 'a'", "stop cannot be 'a'"),
        ("stop = [1]", r"stop cannot be \[1\]"),
        ("model =", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read(tmp_path, content)
    assert str(tmp_path / "config.toml") in str(caught.value)
