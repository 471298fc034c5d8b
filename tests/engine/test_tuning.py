"""Measuring rounds on the running machine leaves no trace but the figures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from dflash_mlx.engine.blocks import COPIED_ROWS
from dflash_mlx.engine.context import Context
from dflash_mlx.engine.drafting import BlockDrafting
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import Chooser
from dflash_mlx.engine.tuning import Tuning, time_rounds
from tests.tiny import KEY, cached_rows, drafter_rows, random_drafting, run, same_bits, tiny_target

PROMPT = [5, 17, 99, 3, 120, 44, 8, 9]
TARGET = tiny_target("qwen3")
GREEDY, DRAWN = Chooser(Sampling(), KEY), Chooser(Sampling(temperature=1.0, top_p=0.9), KEY)


def after_prompt(window: int | None = None) -> Context:
    """A context that holds the prompt, but for the anchor."""
    context = Context(TARGET, random_drafting(TARGET, window))
    context.prefill(PROMPT[:-1], draft=True)
    return context


def ticking(step: float = 0.001) -> Callable[[], float]:
    """A clock by which every reading takes as long."""
    ticks = count()
    return lambda: next(ticks) * step


@pytest.mark.parametrize("chooser", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("window", [None, 4], ids=["full", "sliding"])
def test_a_measured_context_is_as_it_was(chooser: Chooser, window: int | None) -> None:
    context, untouched = after_prompt(window), after_prompt(window)

    timings, _ = time_rounds(context, chooser, [1, 2, 8, 16], [2, 6])

    assert (sorted(timings.verify), sorted(timings.draft)) == ([1, 2, 8, 16], [2, 6])
    assert all(seconds > 0 for part in timings for seconds in part.values())
    assert context.tokens == untouched.tokens
    assert same_bits(cached_rows(context), cached_rows(untouched))
    ours, theirs = context.drafting, untouched.drafting
    assert isinstance(ours, BlockDrafting)
    assert isinstance(theirs, BlockDrafting)
    assert same_bits(drafter_rows(ours), drafter_rows(theirs))
    said = [run(TARGET, PROMPT, 9, block_size=4, context=each)[0] for each in (context, untouched)]
    assert said[0] == said[1]


def test_a_context_without_tokens_can_be_measured() -> None:
    timings, _ = time_rounds(Context(TARGET, random_drafting(TARGET)), GREEDY, [1, 4], [4])

    assert timings.verify[4] > 0


def test_a_slow_machine_is_measured_at_the_ends_alone() -> None:
    timings, steady = time_rounds(after_prompt(), GREEDY, [1, 2, 4, 16], [2, 6], ticking(1.0))

    assert (sorted(timings.verify), sorted(timings.draft)) == ([1, 16], [6])
    assert steady


def stalling(every: int) -> Callable[[], float]:
    """A clock of a machine that now and then does something else for long."""
    seconds = 0.0
    readings = count()

    def clock() -> float:
        nonlocal seconds
        seconds += 0.001 if next(readings) % every else 0.1
        return seconds

    return clock


def test_the_least_of_several_timings_counts() -> None:
    """What else the machine does only ever adds."""
    timings, steady = time_rounds(after_prompt(), GREEDY, [1, 2], [2], stalling(every=17))

    assert [*timings.verify.values(), *timings.draft.values()] == pytest.approx([0.001] * 3)
    assert steady


def test_what_was_measured_on_a_busy_machine_serves_but_is_not_kept(tmp_path: Path) -> None:
    """Else one bad minute would decide for ever."""
    context, tuning = after_prompt(), Tuning(4, {}, tmp_path)
    bumpy = iter(1.7**i for i in range(1000))

    assert tuning.measure(context, GREEDY, lambda: next(bumpy)) > 0
    assert tuning.measure(context, GREEDY, ticking()) == 0
    assert list(tmp_path.iterdir()) == []
    assert Tuning(4, {}, tmp_path).measure(context, GREEDY, ticking()) > 0
    assert len(list(tmp_path.iterdir())) == 1


def test_nor_is_it_kept_along_with_what_was_measured_later(tmp_path: Path) -> None:
    context, tuning = after_prompt(), Tuning(4, {}, tmp_path)
    bumpy = iter(1.7**i for i in range(1000))
    tuning.measure(context, GREEDY, lambda: next(bumpy))
    context.prefill([3] * 1100, draft=True)
    assert tuning.measure(context, GREEDY, ticking()) > 0

    anew = Tuning(4, {}, tmp_path)
    assert anew.costs(GREEDY).covers(1107)
    assert not anew.costs(GREEDY).covers(7)


def test_what_another_process_kept_meanwhile_stays(tmp_path: Path) -> None:
    context, one, other = after_prompt(), Tuning(4, {}, tmp_path), Tuning(4, {}, tmp_path)
    one.costs(GREEDY)
    other.measure(context, GREEDY, ticking())
    context.prefill([3] * 1100, draft=True)
    one.measure(context, GREEDY, ticking())

    assert Tuning(4, {}, tmp_path).costs(GREEDY).covers(7)


def test_a_machine_is_measured_once_for_each_magnitude_of_context(tmp_path: Path) -> None:
    tuning = Tuning(4, {"model": "tiny"}, tmp_path)
    context = after_prompt()
    assert tuning.measure(context, GREEDY, ticking()) > 0
    assert tuning.measure(context, GREEDY, ticking()) == 0
    assert Tuning(4, {"model": "tiny"}, tmp_path).measure(context, GREEDY, ticking()) == 0

    assert tuning.measure(context, DRAWN, ticking()) > 0, "drawing costs more than a maximum"
    assert Tuning(4, {"model": "other"}, tmp_path).measure(context, GREEDY, ticking()) > 0
    context.prefill([3] * 1100, draft=True)
    assert tuning.measure(context, GREEDY, ticking()) > 0


def test_passes_are_measured_up_to_the_longest_copy_and_drafts_up_to_the_drafters_block() -> None:
    tuning, context = Tuning(6), after_prompt()
    tuning.measure(context, GREEDY, ticking())

    at = tuning.costs(GREEDY).at(7)
    assert (len(at.verify), len(at.draft)) == (COPIED_ROWS, 6)
    assert len(Tuning(32).costs(GREEDY).rows_to_measure()[0]) == 8, "a longer block is measured too"


def test_without_the_drafter_no_draft_is_measured_and_the_figures_are_others(
    tmp_path: Path,
) -> None:
    context = Context(TARGET, None)
    context.prefill(PROMPT[:-1], draft=False)
    assert Tuning(4, {}, tmp_path).measure(context, GREEDY, ticking(), drafts=False) > 0

    tuning = Tuning(4, {}, tmp_path)
    assert tuning.measure(context, GREEDY, ticking(), drafts=False) == 0
    assert tuning.costs(GREEDY, drafts=False).measured[7].draft == {}
    assert not tuning.costs(GREEDY).covers(7)
    assert not tuning.blocks(GREEDY, copies=True, drafts=False).drafts
    assert tuning.blocks(GREEDY, copies=True).drafts


def test_what_another_version_of_this_program_kept_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes may be others."""
    context = after_prompt()
    monkeypatch.setattr("dflash_mlx.engine.tuning.__version__", "0.0.9")
    Tuning(4, {}, tmp_path).measure(context, GREEDY, ticking())
    assert Tuning(4, {}, tmp_path).costs(GREEDY).covers(7)
    monkeypatch.undo()

    assert not Tuning(4, {}, tmp_path).costs(GREEDY).covers(7)


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    tuning = Tuning(4, {}, tmp_path / "file")

    assert tuning.measure(after_prompt(), GREEDY, ticking()) > 0
    assert tuning.blocks(GREEDY, copies=False).plan(0, 9).rows >= 1


def test_a_policy_outlives_a_generation() -> None:
    tuning = Tuning(4)

    assert tuning.blocks(GREEDY, copies=True) is tuning.blocks(GREEDY, copies=True)
    assert tuning.blocks(GREEDY, copies=True) is not tuning.blocks(GREEDY, copies=False)
