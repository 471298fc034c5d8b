"""An embedded target in miniature: a tiny GGUF file in a wheel that pip accepts."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

from dflash_mlx.hub.embedded import SMOLLM2, EmbeddedTarget
from dflash_mlx.hub.wheel import Wheel
from tests.convert.tiny_gguf import tiny_gguf

GGUF = "tiny_embedded/tiny.gguf"
METADATA = "Metadata-Version: 2.1\nName: tiny-embedded\nVersion: 1.0\n"
TAGS = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path) -> Path:
    """Write `tiny_embedded-1.0-py3-none-any.whl` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = tiny_gguf("Q4_1", embedding="Q8_0").write(folder / "tiny.gguf")
    path = folder / "tiny_embedded-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, GGUF)
        archive.writestr("tiny_embedded-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_embedded-1.0.dist-info/WHEEL", TAGS)
        archive.writestr("tiny_embedded-1.0.dist-info/RECORD", "")
    gguf.unlink()
    return path


def source_of(path: Path) -> EmbeddedTarget:
    """The target that is made from the wheel at `path`."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return replace(
        SMOLLM2,
        name="tiny",
        wheel=Wheel("tiny-embedded", "1.0", digest, len(content)),
        gguf=GGUF,
        gguf_nbytes=len(content),
    )
