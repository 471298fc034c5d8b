"""The statistics: true for what ran, on one line, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dflash_mlx.commands.statsline import fold, format_stats, list_stats, to_json
from dflash_mlx.engine.events import Configuration, Result, Stats

CONFIGURATION = Configuration(
    model="smollm2-135m",
    draft_model="smollm2-135m-dflash",
    target_dtype="float32",
    draft_dtype="float32",
    device="cpu",
    blas="openblas",
    compiled=True,
    exact=False,
    block_size=8,
    kernels="stock MLX",
    notes=("a note",),
)
PLAIN = replace(CONFIGURATION, block_size=1)


def stats(
    configuration: Configuration = CONFIGURATION, accepted: tuple[int, ...] = (3, 0)
) -> Stats:
    return Stats(
        configuration,
        seed=7,
        prompt_tokens=41,
        generated_tokens=6,
        accepted=list(accepted),
        drafted=[7] * len(accepted),
        prefill_seconds=0.421,
        decode_seconds=0.25,
        model_seconds=0.24,
        peak_memory=612_345_678,
    )


def test_the_whole_line() -> None:
    assert format_stats(stats(), "stop") == (
        "20.0 tokens/s · acceptance length 2.50 in 2 rounds, block 8 · 6 tokens · prompt 41"
        " · first token after 0.42 s · peak 612 MB · smollm2-135m + smollm2-135m-dflash"
        " · float32, cpu, openblas · seed 7"
    )


AUTO = replace(CONFIGURATION, auto=True, copies=True)


def test_chosen_blocks_are_told_by_their_range_and_mean() -> None:
    """Passes without drafts count: three of one row, and one each of 8 and 4."""
    chosen = replace(stats(AUTO, (3, 0)), drafted=[7, 3], plain_steps=3)
    assert "acceptance length 2.50 in 2 rounds, block auto: 1-8, mean 3.0 ·" in format_stats(
        chosen, "stop"
    )


def test_copied_rounds_are_told() -> None:
    copied = replace(stats(AUTO), copied_rounds=1, copied_tokens=3)
    assert "block auto: 8-8, mean 8.0, 1 copied ·" in format_stats(copied, "stop")
    assert "copied from the context: 3 tokens in 1 round" in list_stats(copied, "stop")


def test_copies_without_a_drafter_name_no_drafter_and_are_not_plain_decoding() -> None:
    alone = replace(PLAIN, draft_model=None, auto=True, copies=True)
    copied = replace(stats(alone), copied_rounds=2, copied_tokens=3)
    line = format_stats(replace(copied, drafted=[15, 3], plain_steps=2), "stop")
    assert "length 2.50 in 2 rounds, block auto: 1-16, mean 5.5, 2 copied · 6 tokens" in line
    assert " · smollm2-135m · float32, cpu" in line
    none = format_stats(replace(stats(alone, ()), plain_steps=5), "stop")
    assert none.startswith("20.0 tokens/s · nothing copied, block auto: 1 · 6 tokens")


def test_a_reply_without_a_draft_says_that_this_was_chosen() -> None:
    """Report 45: people measured plain decoding and did not know it."""
    line = format_stats(replace(stats(AUTO, ()), plain_steps=5), "stop")
    assert line.startswith("20.0 tokens/s · no round drafted, block auto: 1 · 6 tokens")


def test_plain_decoding_is_called_so_and_names_no_drafter() -> None:
    """Whether no drafter is there, or one is and `--no-draft` leaves it out."""
    for configuration in (PLAIN, replace(CONFIGURATION, draft_model=None)):
        line = format_stats(stats(configuration, accepted=()), "stop")
        assert line.startswith("20.0 tokens/s · plain decoding · 6 tokens")
        assert " · smollm2-135m · float32, cpu" in line
        for word in ("acceptance", "block", "dflash"):
            assert word not in line
            assert word not in " ".join(list_stats(stats(configuration, accepted=()), "stop"))


@pytest.mark.parametrize(
    ("finish_reason", "words"),
    [("length", "6 tokens, cut off at the limit"), (None, "6 tokens, interrupted")],
)
def test_a_reply_that_was_cut_off_says_so(finish_reason: str | None, words: str) -> None:
    assert f" · {words} · " in format_stats(stats(), finish_reason)
    assert words in list_stats(stats(), finish_reason)


def test_what_was_reused_of_the_prompt_is_told() -> None:
    assert " · prompt 30 reused + 11 new · " in format_stats(
        replace(stats(), reused_tokens=30), "stop"
    )


def test_a_single_token_has_no_speed_and_no_round() -> None:
    one = replace(stats(accepted=()), generated_tokens=1, decode_seconds=0.0)
    assert format_stats(one, "length").startswith("too short to draft · 1 token, cut off")


def test_models_are_named_without_their_publishers_and_in_the_list_with_them() -> None:
    hub = replace(CONFIGURATION, model="org/Big-4bit", draft_model="lab/Big-DFlash")
    assert " · Big-4bit + Big-DFlash · " in format_stats(stats(hub), "stop")
    facts = list_stats(stats(hub), "stop")
    assert "target org/Big-4bit, float32" in facts
    assert "drafter lab/Big-DFlash, float32" in facts


def test_the_list_has_what_the_line_leaves_out() -> None:
    """How weights are kept, the drafter's own dtype, and what it drafts from."""
    full = replace(
        CONFIGURATION,
        target_dtype="bfloat16 (4-bit weights)",
        draft_dtype="float16",
        draft_vocab=12032,
    )
    facts = list_stats(stats(full), "stop")
    assert "target smollm2-135m, bfloat16 (4-bit weights)" in facts
    assert "drafter smollm2-135m-dflash, float16, drafting 12,032 tokens" in facts
    assert "accepted at each place of a block: 0.50 0.50 0.50 0.00 0.00 0.00 0.00" in facts
    assert " · bfloat16, cpu, " in format_stats(stats(full), "stop")


def test_metal_does_not_boast_a_blas() -> None:
    metal = replace(CONFIGURATION, device="metal", blas="accelerate")
    assert " · float32, metal · " in format_stats(stats(metal), "stop")


def test_own_kernels_are_told_in_the_line_and_mlxs_in_the_list() -> None:
    own = replace(CONFIGURATION, kernels="block attention")
    assert " · float32, cpu, openblas, block attention · " in format_stats(stats(own), "stop")
    assert "cpu, openblas, kernels: stock MLX" in list_stats(stats(), "stop")


def test_exact_and_uncompiled_runs_say_so() -> None:
    slow = replace(CONFIGURATION, blas="reference", exact=True, compiled=False)
    assert ", cpu, reference BLAS, not compiled, exact · " in format_stats(stats(slow), "stop")


def test_large_memory_is_told_in_gigabytes() -> None:
    assert " · peak 12.35 GB · " in format_stats(
        replace(stats(), peak_memory=12_345_000_000), "stop"
    )


def test_the_line_is_one_line_where_lines_may_be_long() -> None:
    line = format_stats(stats(), "stop")
    assert "\n" not in line
    assert fold(line, None) == fold(line, len(line)) == line


@pytest.mark.parametrize("width", [200, 80, 40, 3])
def test_on_a_narrow_screen_it_breaks_between_its_parts(width: int) -> None:
    line = format_stats(stats(), "stop")
    folded = fold(line, width).split("\n")
    assert " · ".join(folded) == line
    assert all(len(row) <= width or " · " not in row for row in folded)
    if width == 80:
        assert len(folded) == 3


def test_json_has_every_figure_and_the_configuration() -> None:
    result = Result("Hi.", "Hm.", [5, 6, 7, 8, 9, 2], "stop", replace(stats(), reused_tokens=30))
    assert json.loads(json.dumps(to_json(result))) == {
        "text": "Hi.",
        "thinking": "Hm.",
        "token_ids": [5, 6, 7, 8, 9, 2],
        "finish_reason": "stop",
        "prompt_tokens": 41,
        "reused_tokens": 30,
        "generated_tokens": 6,
        "rounds": 2,
        "accepted": [3, 0],
        "acceptance_length": 2.5,
        "acceptance_by_position": [0.5, 0.5, 0.5, 0, 0, 0, 0],
        "drafted": [7, 7],
        "plain_steps": 0,
        "copied_rounds": 0,
        "copied_tokens": 0,
        "host_reads": 0,
        "prefill_seconds": 0.421,
        "decode_seconds": 0.25,
        "model_seconds": 0.24,
        "tokens_per_second": 20.0,
        "peak_memory_bytes": 612_345_678,
        "seed": 7,
        "configuration": {
            "model": "smollm2-135m",
            "draft_model": "smollm2-135m-dflash",
            "target_dtype": "float32",
            "draft_dtype": "float32",
            "device": "cpu",
            "blas": "openblas",
            "compiled": True,
            "exact": False,
            "block_size": 8,
            "kernels": "stock MLX",
            "notes": ["a note"],
            "draft_vocab": None,
            "auto": False,
            "copies": False,
        },
    }


def test_json_of_plain_decoding_has_no_acceptance() -> None:
    result = Result("Hi.", "", [5], "length", replace(stats(PLAIN, ()), generated_tokens=1))
    printed = to_json(result)
    assert (printed["rounds"], printed["accepted"]) == (0, [])
    assert printed["acceptance_length"] is None
    assert printed["acceptance_by_position"] == []
    assert printed["tokens_per_second"] is None
