"""A tiny model to convert."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.convert.tiny_models import write_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "place" / "source")
