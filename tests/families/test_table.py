"""README tells what the tests run."""

from __future__ import annotations

from tests.families.models import DRAFTERS, FAMILIES
from tests.families.table import README, table, updated


def test_readme_has_the_matrix_of_these_tests() -> None:
    """If not: `python -m tests.families.table`."""
    text = README.read_text(encoding="utf-8")
    assert text == updated(text)


def test_the_table_names_every_family_and_drafter_of_the_matrix() -> None:
    lines = table()
    assert all(f"| `{family}` |" in lines for family in FAMILIES)
    assert all(kind in lines for kind in DRAFTERS)
    rows = {line.split("`")[1]: line for line in lines.splitlines() if line.startswith("| `")}
    assert "sliding windows" in rows["gemma3_text"]
    assert "recurrent layers" in rows["qwen3_5"]
    assert rows["llama"].endswith("| attention | yes | yes |")
