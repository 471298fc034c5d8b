"""A large file of the hub, from where an interrupted download of it stopped.

The hub's client keeps the files that it has finished and begins an interrupted one anew, which
costs gigabytes for weights. So large files are fetched here, by plain HTTP, into the place of the
hub's cache where the client looks first: `blobs/<etag>`. It then finds them there and links them.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Sequence
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DFlashError

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

LARGE = 16 << 20
"""Bytes from which on a file is fetched here."""
SUFFIX = ".dflash-mlx.incomplete"


def large_files(files: Sequence[DryRunFileInfo]) -> list[DryRunFileInfo]:
    """Those worth resuming; the hub gives files beyond 50 GB to its own client only."""
    from huggingface_hub import constants

    most = constants.MAX_HTTP_DOWNLOAD_SIZE
    return [file for file in files if LARGE <= (file.file_size or 0) <= most]


def partial_bytes(repository: Path) -> int:
    """Bytes that interrupted downloads have left in a repository's folder of the cache."""
    return sum(file.stat().st_size for file in repository.glob(f"blobs/*{SUFFIX}"))


def fetch_file(name: str, file: DryRunFileInfo, repository: Path, bars: Any) -> None:
    """Download one file of model `name` into `repository`, its folder of the hub's cache.

    `bars` is the class of the progress bar. An interrupt, a kill or an error leave what came so
    far for the next call. Raises DFlashError if the file arrived damaged, and what the hub's
    client raises.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(name, file.filename, revision=file.commit_hash)
    etag = get_hf_file_metadata(url).etag
    if etag is None:
        return  # the client will say what is wrong
    blob = repository / "blobs" / etag
    partial = blob.with_name(etag + SUFFIX)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("a+b") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        if blob.exists() or not partial.exists():
            partial.unlink(missing_ok=True)
            return  # another process fetched it while this one waited
        _fill(out, url, file.file_size or 0, bars)
        if not _is(out, etag):
            partial.unlink()
            raise DFlashError(f"{file.filename} of {name} arrived damaged: run again.")
        partial.rename(blob)


def _fill(out: BufferedRandom, url: str, size: int, bars: Any) -> None:
    """Append what is missing of the file at `url`; a lost connection is taken up again."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    have = out.seek(0, 2)
    if have > size:
        have = out.truncate(0)
    http_get(
        url,
        out,
        resume_size=have,
        headers=build_hf_headers(),
        expected_size=size,
        tqdm_class=bars,
    )
    out.flush()


def _is(file: BufferedRandom, etag: str) -> bool:
    """Whether a file is the one that its etag names: a SHA-256 for large files, else unknown."""
    if len(etag) != 64:
        return True
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest() == etag
