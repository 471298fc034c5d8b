"""`train prepare`: the target's own answers, through its own template, once each, and resumable."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_mlx.api import generate
from dflash_mlx.backend import prepare
from dflash_mlx.commands.train.app import Job
from dflash_mlx.commands.train.prepare import prepare_data
from dflash_mlx.commands.train.stages import Stages
from dflash_mlx.engine.noise import Key, stream_key
from dflash_mlx.engine.options import Sampling
from dflash_mlx.engine.sampling import _penalized
from dflash_mlx.errors import DFlashError, UsageError
from dflash_mlx.hub.pairs import PairFolders
from dflash_mlx.pair import Pair, load_pair
from dflash_mlx.training import responses
from dflash_mlx.training.conversations import Conversation, read_conversations
from dflash_mlx.training.corpus import read_corpus
from dflash_mlx.training.loops import loop_start
from dflash_mlx.training.prepare import Prepare, PrepareReport
from dflash_mlx.training.prompts import make_plans, read_prompts
from dflash_mlx.training.responses import repeated_less
from dflash_mlx.training.settings import PrepareSettings
from dflash_mlx.training.slots import Slots
from dflash_mlx.training.template import take_apart
from dflash_mlx.training.topics import questions
from tests.tiny_folders import LETTERS, LETTERS_ONLY, tiny_pair, write_target

LENGTH = 80
END = 258
SWITCH = "{% if enable_thinking is defined %}{{ 'on:' if enable_thinking else 'off:' }}{% endif %}"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


def prompts_file(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def short_prompts(tmp_path: Path, count: int) -> Path:
    return prompts_file(tmp_path, *({"text": f"{number}?"} for number in range(count)))


def settings(path: Path | None = None, **changes: object) -> PrepareSettings:
    given = {"length": LENGTH, "long_share": 0.0, "sampled": 0.0, "slots": 4, "heldout": 0.0}
    files = {"prompts": [path]} if path else {}
    return PrepareSettings(**{**given, **files, **changes})  # type: ignore[arg-type]


def prepared(
    pair: Pair, folder: Path, chosen: PrepareSettings
) -> tuple[list[Conversation], list[PrepareReport]]:
    reports = list(Prepare(pair, chosen, folder, "tiny").run())
    return read_conversations(folder / "train.jsonl"), reports


def test_a_greedy_answer_is_what_the_engine_serves(pair: Pair, tmp_path: Path) -> None:
    """Side by side in slots, of different lengths, as alone: same template, same tokens."""
    texts = ["Hi", "What is the sea?", "Say something long and dull, please."]
    path = prompts_file(tmp_path, *({"text": text} for text in texts))
    talks, _ = prepared(pair, tmp_path / "data", settings(path, slots=2))
    assert len(talks) == 3
    by_prompt = {tuple(talk.ids[: talk.answers[0][0]].tolist()): talk for talk in talks}
    for text in texts:
        prompt = pair.encode(pair.render([{"role": "user", "content": text}]))
        talk = by_prompt[tuple(prompt)]
        [(begin, end)] = talk.answers
        alone = generate(pair, prompt, max_tokens=end - begin, draft=False, temperature=0.0)
        assert talk.ids[begin:end].tolist() == alone.tokens


def test_a_sampled_answer_is_chosen_in_the_pairs_own_way(pair: Pair, tmp_path: Path) -> None:
    """Where the best token is taken, and the last 64 score nothing, none comes again in them."""
    own = Sampling(temperature=0.5, top_k=1, repetition_penalty=1e6, repetition_context_size=64)
    strict = replace(pair, defaults=own)
    path = short_prompts(tmp_path, 3)
    talks, _ = prepared(strict, tmp_path / "data", settings(path, sampled=1.0, slots=3, length=70))
    for talk in talks:
        [(begin, end)] = talk.answers
        said = talk.ids[begin:end].tolist()
        assert talk.temperature == 0.5
        assert len(set(said)) == len(said) > 10


def test_each_conversation_repeats_its_own_words_less() -> None:
    """As the engine's rule has it for one text, whatever others in the batch have said."""
    logits = mx.random.normal((3, 40), key=mx.random.key(1))
    histories = [[1, 2, 3, 2], [5], [*range(20)]]
    sampling = Sampling(temperature=0.5, repetition_penalty=1.7, repetition_context_size=6)
    found = repeated_less(logits, histories, sampling)
    for row, history in enumerate(histories):
        alone = _penalized(logits[row][None], sampling, history, None)
        assert mx.array_equal(found[row], alone[0])
    assert repeated_less(logits, histories, Sampling()) is logits


def test_a_slot_holds_its_own_prompt_whatever_was_said_before(pair: Pair) -> None:
    """What prompts begin with alike is forwarded once, and changes nothing of what follows."""
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3], [], [1, 2, 7, 7, 7, 7]]
    together = Slots(pair.target, len(prompts))
    forwarded, forward = [], pair.target.forward

    def noted(tokens: mx.array, caches: list[Any]) -> Any:
        forwarded.append(tokens.size)
        return forward(tokens, caches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.target, "forward", noted)
        for slot, prompt in enumerate(prompts):
            together.begin(slot, prompt)
    assert forwarded == [5, 1, 6]
    logits = together.step([8] * len(prompts))
    for slot, prompt in enumerate(prompts):
        alone = Slots(pair.target, 1)
        alone.begin(0, prompt)
        assert mx.array_equal(alone.step([8])[0], logits[slot])


def test_turns_of_a_file_are_asked_one_after_another(pair: Pair, tmp_path: Path) -> None:
    """With the target's own answers between them, in the very tokens of its template."""
    words = ["Hello there", "And now?"]
    messages = [{"role": "user", "content": words[0]}, {"role": "assistant", "content": "not this"}]
    messages.append({"role": "user", "content": words[1]})
    path = prompts_file(tmp_path, {"messages": messages})
    brief = Sampling(temperature=8.0, logit_bias={**dict.fromkeys(LETTERS, 200.0), END: 216.0})
    [talk], _ = prepared(
        replace(pair, defaults=brief), tmp_path / "data", settings(path, sampled=1.0, length=400)
    )
    (begin, end), (again, last) = talk.answers
    assert (talk.ids[end - 1], talk.ids[last - 1], last) == (END, END, len(talk))
    messages[1]["content"] = pair.tokenizer.decode(talk.ids[begin : end - 1].tolist())
    assert talk.ids[:again].tolist() == pair.encode(pair.render(messages))


def test_a_slot_that_ends_takes_the_next_conversation_at_once(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 50 tokens beside five of 10 takes 50 passes, all of two rows."""
    texts = ["a", *(letter * 41 for letter in "bcdef")]
    path = prompts_file(tmp_path, *({"text": text} for text in texts))
    shortest = len(pair.encode(pair.render([{"role": "user", "content": "a"}])))
    rows: list[int] = []
    step = Slots.step

    def noted(slots: Slots, tokens: Sequence[int]) -> mx.array:
        rows.append(len(tokens))
        return step(slots, tokens)

    monkeypatch.setattr(Slots, "step", noted)
    chosen = settings(path, sampled=1.0, slots=2, length=shortest + 50)
    talks, _ = prepared(replace(pair, defaults=LETTERS_ONLY), tmp_path / "data", chosen)
    assert sorted(int(talk.assistant.sum()) for talk in talks) == [10] * 5 + [50]
    assert rows == [2] * 50


def test_no_two_passes_share_their_noise(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short conversations and long ones, which are written apart, neither."""
    keys: list[Key] = []

    def noted(*words: int) -> Key:
        keys.append(stream_key(*words))
        return keys[-1]

    monkeypatch.setattr(responses, "stream_key", noted)
    chosen = settings(short_prompts(tmp_path, 6), length=60, long_length=64, long_share=0.5)
    talks, _ = prepared(
        replace(pair, defaults=LETTERS_ONLY), tmp_path, replace(chosen, sampled=1.0)
    )
    assert {len(talk) for talk in talks} == {60, 64}
    assert len(set(keys)) == len(keys)


def test_the_target_begins_conversations_itself(pair: Pair, tmp_path: Path) -> None:
    talks, reports = prepared(pair, tmp_path, settings(own=4, length=110))
    opening = take_apart(pair, None, None).opening
    assert reports[-1].done == reports[-1].total == 4
    for talk in talks:
        assert talk.ids[: len(opening)].tolist() == opening
        assert talk.answers[0][0] > len(opening)  # the user said something
        assert len(talk) <= 110


def test_only_the_assistants_words_are_marked(pair: Pair, tmp_path: Path) -> None:
    talks, _ = prepared(pair, tmp_path, settings(topics=4, length=150, turns=3))
    reply = take_apart(pair, None, None).reply
    for talk in talks:
        for begin, end in talk.answers:
            assert talk.ids[begin - len(reply) : begin].tolist() == reply
            ended = int(talk.ids[end - 1]) in pair.stop_tokens
            assert ended or end == len(talk)
            assert not set(talk.ids[begin : end - 1].tolist()) & pair.stop_tokens


def test_no_answer_goes_round_in_circles(pair: Pair, tmp_path: Path) -> None:
    talks, reports = prepared(pair, tmp_path, settings(topics=8, length=200, slots=8))
    assert all(
        loop_start(talk.ids[begin:end].tolist()) is None
        for talk in talks
        for begin, end in talk.answers
    )
    assert reports[-1].looped > 0  # greedy noise does loop, so this says something


def test_an_interrupted_stage_goes_on_and_repeats_nothing(pair: Pair, tmp_path: Path) -> None:
    chosen = settings(short_prompts(tmp_path, 6), slots=2)
    first: list[PrepareReport] = []
    for report in Prepare(pair, chosen, tmp_path, "tiny").run(lambda: first[-1].done > 0):
        first.append(report)
    assert 0 < first[-1].done < 6
    with (tmp_path / "written.jsonl").open("a") as file:
        file.write('{"key": "half a li')
    talks, reports = prepared(pair, tmp_path, chosen)
    assert (reports[0].done, reports[-1].done) == (first[-1].done, 6)
    assert len({talk.prompt for talk in talks}) == len(talks) == 6
    assert reports[-1].answer_tokens == sum(talk.assistant.sum() for talk in talks)


def test_a_damaged_line_of_what_is_written_is_named(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "written.jsonl").write_text('{"key": "1\n{"key": "2"}\n')
    with pytest.raises(DFlashError, match=r"written\.jsonl, line 1 is damaged: take it out"):
        prepared(pair, tmp_path, settings(short_prompts(tmp_path, 2)))


def test_a_stage_tells_of_each_pass_and_stops_behind_any(pair: Pair, tmp_path: Path) -> None:
    """Nobody waits for a conversation to end."""
    chosen = settings(topics=2, slots=2)
    seen: list[tuple[int, int]] = []
    for report in Prepare(pair, chosen, tmp_path, "tiny").run(lambda: len(seen) == 6):
        seen.append((report.done, report.answer_tokens))
    assert seen == [(0, 0), (0, 0), (0, 0), (0, 2), (0, 4), (0, 6)]  # two prefills, three passes


def test_more_can_be_asked_for_later(pair: Pair, tmp_path: Path) -> None:
    prepared(pair, tmp_path, settings(topics=2, length=150))
    more = settings(short_prompts(tmp_path, 1), topics=3, own=1, length=150, slots=2, heldout=0.5)
    _, reports = prepared(pair, tmp_path, more)
    assert (reports[0].done, reports[-1].done) == (2, 5)


def test_prompts_that_leave_no_room_for_an_answer_are_counted(pair: Pair, tmp_path: Path) -> None:
    """Two tokens of it are the least that a drafter can learn from."""
    around = len(pair.encode(pair.render([{"role": "user", "content": ""}])))
    room = LENGTH - around
    path = prompts_file(tmp_path, *({"text": "x" * n} for n in (room - 2, room - 1, room, 4000)))
    talks, reports = prepared(pair, tmp_path / "data", settings(path))
    assert [(len(talk), int(talk.assistant.sum())) for talk in talks] == [(LENGTH, 2)]
    assert (reports[0].total, reports[0].left_out) == (1, 3)
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["left_out"] == 3


def test_what_is_cut_or_left_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_target(tmp_path / "target", 64)
    path = prompts_file(tmp_path, {"text": "x"}, {"text": "x" * 100})
    job = Job(model=str(tmp_path / "target"), folder=tmp_path / "job")
    stages = Stages(job, prepare(exact=sys.platform == "linux"))
    prepare_data(stages, {"prompts": [path], "length": 60, "long_share": 1.0, "heldout": 0.0})
    said = capsys.readouterr().err
    assert "--long-length 2,048 is more than the target's context holds" in said
    assert "--length 60" not in said
    assert said.count("1 prompts leave no room for an answer") == 1
    assert "the run in" not in said
    [talk] = read_conversations(tmp_path / "job" / "data" / "train.jsonl")
    assert len(talk) <= 64
    assert stages.target()[0].target.context_limit == 64


def test_a_run_that_is_begun_is_told_of_before_there_are_more_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be refused them, once they are written and the old ones are mixed with them."""
    write_target(tmp_path / "target", 64)
    job = Job(model=str(tmp_path / "target"), folder=tmp_path / "job")
    stages = Stages(job, prepare(exact=sys.platform == "linux"))
    saved = tmp_path / "job" / "run" / "checkpoints" / "step-0000001" / "drafter"
    saved.mkdir(parents=True)
    asked = {"length": 60, "long_share": 0.0, "heldout": 0.0}
    for count, told in ((2, 1), (2, 0), (3, 1)):
        prepare_data(stages, {**asked, "prompts": [short_prompts(tmp_path, count)]})
        said = capsys.readouterr().err
        assert said.count("cannot go on with more") == said.count(f"--init {saved}.") == told


def test_the_sides_share_no_question(pair: Pair, tmp_path: Path) -> None:
    train, _ = prepared(
        pair, tmp_path, settings(short_prompts(tmp_path, 30), heldout=0.3, length=45, slots=30)
    )
    heldout = read_conversations(tmp_path / "heldout.jsonl")
    assert len(train) + len(heldout) == 30
    assert heldout
    assert not {talk.prompt for talk in train} & {talk.prompt for talk in heldout}


def test_the_manifest_says_who_wrote_and_how(pair: Pair, tmp_path: Path) -> None:
    prepared(pair, tmp_path, settings(topics=2, thinking=False))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["target"] == pair.configuration.model
    assert manifest["target_fingerprint"] == "tiny"
    assert manifest["settings"]["thinking"] is False


def test_a_folder_that_does_not_say_who_wrote_it_is_told(pair: Pair, tmp_path: Path) -> None:
    prepared(pair, tmp_path, settings(topics=1))
    (tmp_path / "manifest.json").unlink()
    corpus = read_corpus([tmp_path], 320, "tiny", heldout=0, max_length=99, keep_loops=False)
    assert corpus.notes == (
        f"{tmp_path} does not say which target wrote it: it should be this one.",
    )


def switching_pair(folder: Path, thinking: bool | None) -> Pair:
    """One whose template has a switch for reasoning; `thinking` is how its drafter was trained."""
    write_target(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = SWITCH + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    names = PairFolders("tiny", folder, thinking=thinking)
    return load_pair(names, None, prepare(exact=sys.platform == "linux"))


@pytest.mark.parametrize(
    ("known", "asked", "shown", "mode"),
    [
        (False, None, "off:<|im_start|>", False),
        (False, True, "on:<|im_start|>", True),
        (None, None, "<|im_start|>", None),
    ],
)
def test_the_manifest_says_whether_the_target_reasoned(
    tmp_path: Path, known: bool | None, asked: bool | None, shown: str, mode: bool | None
) -> None:
    """As it was asked for, else as the pair has it: a drafter is served in the mode of its data."""
    target = switching_pair(tmp_path / "target", known)
    chosen = settings(short_prompts(tmp_path, 1), own=1, thinking=asked, length=150)
    talks, _ = prepared(target, tmp_path / "data", chosen)
    assert len(talks) == 2
    for talk in talks:
        assert target.tokenizer.decode(talk.ids.tolist()).startswith(shown)
    options: dict[str, Any] = {"heldout": 0, "max_length": 99, "keep_loops": False}
    assert read_corpus([tmp_path / "data"], 320, "tiny", **options).thinking is mode


def test_sampled_and_long_conversations_have_their_share() -> None:
    plans = make_plans(PrepareSettings(own=400, sampled=0.3, long_share=0.1), 0.7)
    assert 80 < sum(plan.temperature == 0.7 for plan in plans) < 160
    long = [plan.length == 2048 for plan in plans]
    assert 20 < sum(long) < 60
    assert long == sorted(long)


def test_a_plan_is_the_same_whatever_else_is_asked_for() -> None:
    few = make_plans(PrepareSettings(topics=5), 0.7)
    many = {plan.prompt.key: plan for plan in make_plans(PrepareSettings(topics=5, own=9), 0.7)}
    assert all(many[plan.prompt.key] == plan for plan in few)


def test_a_prompt_asked_twice_is_planned_once(tmp_path: Path) -> None:
    path = prompts_file(tmp_path, {"text": "A"}, {"text": "B"}, {"text": "A"})
    assert len(make_plans(settings(path), 0.7)) == 2


def test_built_in_questions_are_many_and_different() -> None:
    assert len(set(questions(2000, 0))) == 2000
    assert questions(50, 0) == questions(50, 0) != questions(50, 1)


@pytest.mark.parametrize(
    "line",
    ["nope", "{}", '{"text": ""}', '{"messages": []}', '{"messages": [{"role": "user"}]}', "[1]"],
)
def test_a_bad_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "good"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=r"bad\.jsonl, line 3"):
        read_prompts(path)


def test_prompts_may_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "A"}\n\n{"text": "B"}\n'))
    assert [prompt.turns for prompt in read_prompts(path)] == [("A",), ("B",)]
    path.write_bytes(path.read_bytes()[:12])
    with pytest.raises(DFlashError, match="damaged"):
        read_prompts(path)


def test_the_line_that_is_named_is_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('\n{"text": "A"}\n\n{"words": "B"}\n')
    with pytest.raises(UsageError, match="line 4"):
        read_prompts(path)


def test_a_file_without_prompts_is_told(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(UsageError, match=r"empty\.jsonl has no prompts"):
        read_prompts(path)


def test_instructions_reach_the_target(pair: Pair, tmp_path: Path) -> None:
    path = prompts_file(tmp_path, {"text": "Hi"})
    [talk], _ = prepared(pair, tmp_path / "data", settings(path, system="Be brief."))
    assert pair.tokenizer.decode(talk.ids.tolist()).startswith("<|im_start|>system\nBe brief.")
