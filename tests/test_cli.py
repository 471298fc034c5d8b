"""The program's habits: help at once, exit codes, and one line for each foreseen error."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dflash_mlx import cli
from dflash_mlx._version import __version__
from dflash_mlx.commands.arguments import ChatArguments, GenerateArguments
from dflash_mlx.engine.options import Options, Sampling
from dflash_mlx.errors import DFlashError, UsageError

from .conftest import ROOT, RunCli

HELP_SECONDS = 0.3


def generate_that(
    body: str, *, stdout: int | None = None, after: str = ""
) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, where `generate` does `body`."""
    program = f"""
import sys, types
def run(arguments):
    {body}
command = types.ModuleType("dflash_mlx.commands.generate")
command.run = run
sys.modules[command.__name__] = command
from dflash_mlx.__main__ import main
sys.argv = ["dflash-mlx", "generate", "-p", "hi"]
{after}
main()
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def start(command: str) -> subprocess.CompletedProcess[bytes]:
    """The program by a shell, which closes its ends and gives it bytes that are no text."""
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dflash_mlx {command}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_without_standard_output_there_is_no_answer_to_lose() -> None:
    done = start("generate -p hi >&-")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: Standard output is closed")


def test_closed_standard_input_is_an_empty_prompt() -> None:
    done = start("generate -p - <&-")
    assert done.returncode == 2
    assert done.stderr == b"error: The prompt is empty: give some text to --prompt.\n"


def test_input_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfehi")
    done = start(f"generate -p - < {tmp_path / 'latin'}")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: The input is not valid UTF-8")


def does(monkeypatch: pytest.MonkeyPatch, command: str, run: Callable[[Any], None]) -> None:
    """In this process, the command does `run`."""
    module = ModuleType(f"dflash_mlx.commands.{command}")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, module.__name__, module)


def parsed(
    monkeypatch: pytest.MonkeyPatch, command: str, *flags: str
) -> GenerateArguments | ChatArguments:
    """What the command is given for these flags."""
    seen: list[GenerateArguments | ChatArguments] = []
    does(monkeypatch, command, seen.append)
    assert cli.run([command, *flags]) == 0
    return seen[0]


# Help and version


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_bare_program_and_help_list_the_commands(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "generate" in out
    assert "chat" in out


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"]])
def test_help_answers_within_its_time(run_cli: RunCli, arguments: list[str]) -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_cli(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, since the machine may be busy; and twice, since its cores share caches.
    assert min(cpu_seconds() for _ in range(3)) < 2 * HELP_SECONDS


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom dflash_mlx.cli import run\nrun(['generate', '--help'])\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(done.stderr.split())
    assert "typer" in imported
    assert not imported & {"mlx", "mlx_lm", "transformers", "numpy", "rich", "pydantic"}


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_each_option_says_its_default(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.run([command, "--help"]) == 0
    options = re.split(r"\n  -", capsys.readouterr().out.split("Options:")[1])[1:]
    assert len(options) > 15
    for option in options:
        assert "(default:" in option or "--prompt" in option or "--help" in option


def test_version(run_cli: RunCli) -> None:
    done = run_cli("--version")
    assert (done.returncode, done.stdout) == (0, f"dflash-mlx {__version__}\n")


# Flags


def test_sampling_flags_left_out_take_the_defaults_of_the_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1)
    asked = parsed(monkeypatch, "generate", "-p", "hi", "--top-p", "0.5")
    assert asked.options(defaults) == Options(
        Sampling(temperature=0.7, top_p=0.5, repetition_penalty=1.1), block_size="auto"
    )


def test_every_flag_reaches_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "--prompt - --ignore-chat-template --json --model M --draft-model D --no-draft "
        "--block-size 4 --no-copy --dtype float32 --exact --no-kernels --system-prompt S "
        "--max-tokens 9 --stop a --stop b --temp 0.1 --top-p 0.2 --top-k 3 --min-p 0.4 "
        "--repetition-penalty 1.5 --presence-penalty 0.6 --frequency-penalty 0.7 --seed 8"
    )
    asked = parsed(monkeypatch, "generate", *flags.split())
    assert asked == GenerateArguments(
        prompt="-",
        ignore_chat_template=True,
        json=True,
        model="M",
        draft_model="D",
        no_draft=True,
        block_size=4,
        copy=False,
        dtype="float32",
        kernels=False,
        exact=True,
        system="S",
        max_tokens=9,
        stop=["a", "b"],
        temperature=0.1,
        top_p=0.2,
        top_k=3,
        min_p=0.4,
        repetition_penalty=1.5,
        presence_penalty=0.6,
        frequency_penalty=0.7,
        seed=8,
    )
    assert asked.options(Sampling()) == Options(
        Sampling(0.1, 0.2, 0.4, 3, 1.5, presence_penalty=0.6, frequency_penalty=0.7),
        max_tokens=9,
        stop=("a", "b"),
        seed=8,
        block_size=4,
        draft=False,
        copy=False,
    )


def test_chat_needs_no_flag_and_shares_those_of_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(monkeypatch, "chat") == ChatArguments()
    asked = parsed(monkeypatch, "chat", "--system", "S", "-m", "7")
    assert (asked.system, asked.max_tokens, asked.draft_model) == ("S", 7, "auto")


def test_arguments_out_of_range_are_refused_when_they_are_made() -> None:
    with pytest.raises(UsageError, match="temperature must be 0 or more"):
        ChatArguments(temperature=-1)


# Exit codes and errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "Missing option '--prompt'"),
        (["generate", "-p", "hi", "--tempo", "1"], "No such option: --tempo"),
        (["generate", "-p", "hi", "--top-k", "many"], "Invalid value for '--top-k'"),
        (["generate", "-p", "hi", "--top-p", "0"], "top_p must be above 0"),
        (["generate", "-p", "hi", "-m", "0"], "max_tokens must be 1 or more"),
        (["chat", "--dtype", "int8"], "Invalid value for '--dtype'"),
        (["chat", "--stop", ""], "stop string must not be empty"),
        (["chatt"], "No such command 'chatt'. Did you mean 'chat'?"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("error", "code"), [(DFlashError("It broke."), 1), (UsageError("It broke."), 2)]
)
def test_an_error_for_the_user_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: DFlashError,
    code: int,
) -> None:
    def fail(_: Any) -> None:
        raise error

    does(monkeypatch, "chat", fail)
    assert cli.run(["chat"]) == code
    assert capsys.readouterr() == ("", "error: It broke.\n")


def test_an_interrupt_is_exit_code_130_and_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    does(monkeypatch, "chat", interrupted)
    assert cli.run(["chat"]) == 130
    assert capsys.readouterr() == ("", "")


def test_what_the_system_refuses_is_one_line_and_the_answer_so_far_is_kept() -> None:
    done = generate_that("print('so far'); open('/no/such/file')")
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert done.stderr == "error: No such file or directory (/no/such/file).\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "disk is full"),
        (errno.EFBIG, "limit on file sizes"),
        (errno.EACCES, "Permission denied"),
        (errno.EROFS, "Permission denied"),
    ],
)
def test_a_disk_that_refuses_is_said_with_the_file_and_what_to_do(code: int, words: str) -> None:
    said = cli.sentence(OSError(code, "refused", "/a/file"))
    assert words in said
    assert "(/a/file): " in said
    assert said.endswith(".")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = generate_that("print('answer')", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk always full")
def test_an_answer_that_does_not_fit_on_the_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = generate_that("print('answer')", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "error: The disk is full: free some space and run the command again.\n"
