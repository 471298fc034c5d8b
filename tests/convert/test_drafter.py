"""Converted drafters: recognised by themselves, loaded at once, and the same in every path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.belonging import trained_thinking
from dflash_mlx.convert.counted import count_answers, coverage, most_frequent
from dflash_mlx.drafter import Drafter, load_drafter
from dflash_mlx.drafter.dflash2 import SecondDrafter
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.pairs import PairFolders
from tests.convert.tiny_models import config_of, convert, names, tensors
from tests.drafter.tiny import feed, rows, taps
from tests.tiny_folders import MASK, VOCABULARY, write_drafter, write_tiny_pair

DFLASH2 = Path(__file__).parent.parent / "data" / "parity" / "dflash2"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A drafter of hidden size 64."""
    write_drafter(tmp_path / "source", hidden=64)
    return tmp_path / "source"


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_each_width_is_that_of_the_loaded_layers(bits: int, source: Path, tmp_path: Path) -> None:
    drafter = load_drafter(convert(source, tmp_path / "ours", q_bits=bits, q_group_size=32))
    layers = {path: m for path, m in drafter.named_modules() if hasattr(m, "bits")}
    assert {(m.bits, m.group_size) for m in layers.values()} == {(bits, 32)}
    assert len(layers) == 7  # all but down_proj, of width 48
    assert "layers.0.self_attn.k_proj" in layers


def dequantize(drafter: Drafter) -> Drafter:
    """The same numbers in plain layers."""
    from mlx_lm.utils import dequantize_model

    drafter.set_dtype(mx.float32)
    plain = dequantize_model(drafter)
    assert isinstance(plain, Drafter)
    return plain


@pytest.mark.parametrize("bits", [4, 8])
def test_every_path_of_a_quantized_drafter_computes_its_weights(
    bits: int, source: Path, tmp_path: Path
) -> None:
    folder = convert(source, tmp_path / "ours", q_bits=bits, q_group_size=32)
    quantized = load_drafter(folder, mx.float32)
    plain = dequantize(load_drafter(folder))
    context, block = taps(9, quantized.config), rows(8, 64, seed=2)
    ours, theirs = feed(quantized, context, [5]), feed(plain, context, [5])
    for mine, other in zip(ours.arrays, theirs.arrays, strict=True):  # keys and values
        np.testing.assert_allclose(mine, other, atol=2e-4)
    out, expected = quantized.block(block, ours), plain.block(block, theirs)
    np.testing.assert_allclose(out, expected, atol=2e-3)
    assert mx.array_equal(mx.argmax(out, axis=-1), mx.argmax(expected, axis=-1))


def test_without_wishes_the_tensors_are_the_same(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ours")
    before, after = tensors(source), tensors(tmp_path / "ours")
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)


def test_dflash_2_converts_too(tmp_path: Path) -> None:
    drafter = load_drafter(convert(DFLASH2, tmp_path / "ours", q_bits=8, q_group_size=32))
    assert isinstance(drafter, SecondDrafter)
    assert drafter.candidate_selector.predecessor_codebook.dtype != mx.uint32


def test_a_recipe_serves_drafters(source: Path, tmp_path: Path) -> None:
    folder = convert(source, tmp_path / "ours", recipe="mixed_3_6", q_group_size=32)
    layer = load_drafter(folder).layers[0].self_attn
    assert (layer.v_proj.bits, layer.q_proj.bits) == (6, 3)


def test_what_the_card_says_of_thinking_is_kept(source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text("Use enable_thinking=False.")
    assert trained_thinking(convert(source, tmp_path / "ours")) is False


def test_no_code_is_copied_and_licences_are(source: Path, tmp_path: Path) -> None:
    for name in ("modeling.py", "LICENSE", "draft_vocab.json"):
        (source / name).write_text('{"ids": [1]}')
    folder = convert(source, tmp_path / "ours")
    assert names(folder) == {"config.json", "model.safetensors", "LICENSE", "draft_vocab.json"}


def test_a_quantized_drafter_is_not_quantized_again(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ours", quantize=True)
    with pytest.raises(DFlashError, match="quantized already"):
        convert(tmp_path / "ours", tmp_path / "twice", quantize=True)


def test_weights_beyond_float16_are_refused(source: Path, tmp_path: Path) -> None:
    weights = tensors(source)
    weights["fc.weight"] *= 1e6
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    with pytest.raises(DFlashError, match=r"fc\.weight reaches .* float16 cannot hold"):
        convert(source, tmp_path / "ours", dtype="float16")


def write_answers(path: Path) -> Path:
    """Two conversations: 7 is written five times, 9 and 4 twice, 200 once; 1 only asked."""
    lines = [
        {"ids": [1, 1, 1, 1, 7, 7, 9, 4], "assistant": "00001111"},
        {"ids": [1, 7, 7, 7, 9, 4, 200], "assistant": "0111111"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_answers_are_counted_and_questions_are_not(tmp_path: Path) -> None:
    counts = count_answers([write_answers(tmp_path / "answers.jsonl")], 320)
    assert {int(i): int(counts[i]) for i in counts.nonzero()[0]} == {4: 2, 7: 5, 9: 2, 200: 1}
    assert most_frequent(counts, 2) == [4, 7]  # 4 and 9 are equal: the smaller
    assert coverage(counts, [7, 9]) == 0.7
    assert most_frequent(counts, 6) == [0, 1, 4, 7, 9, 200]


@pytest.mark.parametrize("number", [0, -1, 321])
def test_a_number_that_cannot_be_is_refused(number: int, tmp_path: Path) -> None:
    counts = count_answers([write_answers(tmp_path / "answers.jsonl")], 320)
    with pytest.raises(UsageError, match="1 to 320 tokens"):
        most_frequent(counts, number)


def test_files_without_answers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"ids": [1, 2], "assistant": "00"}\n')
    with pytest.raises(DFlashError, match="holds no answers to count"):
        count_answers([tmp_path / "empty.jsonl"], 320)


def test_a_draft_vocabulary_is_counted_and_written(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = write_answers(tmp_path / "answers.jsonl")
    folder = convert(source, tmp_path / "ours", draft_vocab=3, answers=[answers])
    assert load_drafter(folder).config.draft_vocab == (4, 7, 9)
    assert "draft_vocab.json: 3 of 320 tokens, 90.0% of the answers" in capsys.readouterr().out


def test_a_draft_vocabulary_needs_answers(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name files of conversations by --answers"):
        convert(source, tmp_path / "ours", draft_vocab=3)


def test_with_a_target_the_acceptance_is_told_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_mlx.convert.trial.ANSWER_TOKENS", 4)
    pair = write_tiny_pair(tmp_path / "pair")
    convert(pair.drafter, tmp_path / "ours", q_bits=8, q_group_size=32, target=str(pair.target))
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("acceptance"))
    before, arrow, after = line.split()[1:4]
    assert (float(before) >= 1, arrow, float(after) >= 1) == (True, "->", True)


def test_a_converted_drafter_is_half_of_a_pair(tmp_path: Path) -> None:
    from dflash_mlx.backend import prepare
    from dflash_mlx.pair import load_pair

    folders = write_tiny_pair(tmp_path / "pair")
    ours = convert(folders.drafter, tmp_path / "ours", q_bits=8, q_group_size=32)
    names_: Any = PairFolders("tiny", folders.target, "ours", ours)
    pair = load_pair(names_, None, prepare(exact=True))
    assert pair.drafter is not None
    assert pair.drafter.config.mask_token_id == MASK
    assert config_of(ours)["vocab_size"] == VOCABULARY
