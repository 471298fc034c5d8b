"""Shell completion: Typer's own, at no cost for the program's start."""

from __future__ import annotations

import pytest

from tests.conftest import RunCli


@pytest.mark.parametrize(
    ("words", "offered"),
    [("dflash-mlx ch", ["chat"]), ("dflash-mlx chat --no-th", ["--no-thinking"])],
)
def test_the_shell_is_offered_commands_and_flags(
    run_cli: RunCli, words: str, offered: list[str]
) -> None:
    done = run_cli(
        env={
            "_DFLASH_MLX_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(run_cli: RunCli, shell: str) -> None:
    done = run_cli("--show-completion", shell)
    assert done.returncode == 0
    assert "_DFLASH_MLX_COMPLETE" in done.stdout
