"""What the tests of the hub share: the embedded target, real and in miniature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_mlx.hub.embedded import EmbeddedTarget, ensure_target
from tests.hub.fake_wheel import source_of, write_wheel


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """The real embedded target in the user's own cache; only its first use takes the network."""
    return ensure_target()


@dataclass(frozen=True)
class Embedded:
    """A cache `root` that holds the wheel of `source`, placed by hand."""

    root: Path
    wheel: Path
    source: EmbeddedTarget

    @property
    def folder(self) -> Path:
        return self.root / self.source.name

    def make(self) -> Path:
        return ensure_target(root=self.root, source=self.source)

    def left_behind(self) -> set[str]:
        """What lies in the cache besides the wheel."""
        return {path.name for path in self.root.iterdir()} - {self.wheel.name}


@pytest.fixture
def embedded(tmp_path: Path) -> Embedded:
    root = tmp_path / "cache"
    wheel = write_wheel(root)
    return Embedded(root, wheel, source_of(wheel))
