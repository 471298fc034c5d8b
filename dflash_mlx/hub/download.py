"""Models of the hub, in the hub's own cache: found there without the network, else fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DFlashError
from ..model_folder import read_json
from .resume import fetch_file, large_files, partial_bytes
from .store import check_space, in_words, writing
from .wheel import SetupProgress

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

CHOSEN: Any = {
    "allow_patterns": [
        "model*.safetensors",
        "*.json",
        "*.jinja",
        "*.txt",
        "*.model",
        "*.tiktoken",
    ],
    "ignore_patterns": ["*/*"],
}
"""Weights, configs, templates and tokenizers of the repository's top: no pickles, no code.

A subset of what mlx-lm fetches, so that its downloads count as whole.
"""


def cached_repository(name: str) -> Path | None:
    """The snapshot of `name` in the hub's cache, None if there is none; never takes the network.

    Files that a download of an older hub client left out are not noticed.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True, **CHOSEN))
    except errors.LocalEntryNotFoundError:
        return None


def missing_bytes(name: str) -> int:
    """Bytes of `name` that are not on this machine yet, by the hub. Raises DFlashError."""
    with _explained(name):
        return _size(_missing_files(name)) - partial_bytes(_place(name))


def preview(name: str) -> tuple[dict[str, Any], int]:
    """The config of a repository, and the bytes of its weights by the hub's list: nothing else.

    Raises DFlashError where there is none.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    with _explained(name):
        files = snapshot_download(name, **CHOSEN, dry_run=True, tqdm_class=_reporter())
        folder = Path(hf_hub_download(name, "config.json")).parent
    weights = (file for file in files if file.filename.endswith(".safetensors"))
    return read_json(folder / "config.json"), sum(file.file_size or 0 for file in weights)


def fetch_repository(name: str, progress: SetupProgress) -> Path:
    """Download what is missing of `name` into the hub's cache; an interrupted download goes on.

    Raises DFlashError if there is no such model, it may not be had, the hub cannot be reached, or
    the disk is full.
    """
    from huggingface_hub import snapshot_download

    place = _place(name)
    with _explained(name), writing(place.parent):
        files = _missing_files(name)
        total = _size(files)
        check_space(place.parent, total - partial_bytes(place))
        stage = f"fetching {name} ({in_words(total)})"

        def tell(done: int) -> None:
            if total:
                progress(stage, min(done, total), total)

        done = 0
        for file in large_files(files):
            fetch_file(name, file, place, _reporter(tell, done))
            done += file.file_size or 0
        return Path(snapshot_download(name, **CHOSEN, tqdm_class=_reporter(tell, done)))


def _place(name: str) -> Path:
    """The folder of model `name` in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")


def _missing_files(name: str) -> list[DryRunFileInfo]:
    from huggingface_hub import snapshot_download

    files = snapshot_download(name, **CHOSEN, dry_run=True, tqdm_class=_reporter())
    return [file for file in files if file.will_download]


def _size(files: Sequence[DryRunFileInfo]) -> int:
    return sum(file.file_size or 0 for file in files)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the hub's errors into one sentence that says the cure."""
    from huggingface_hub import errors

    try:
        yield
    except (OSError, RuntimeError, errors.HTTPError) as error:  # httpx's own, and xet's
        raise DFlashError(_reason(name, error)) from error


def _reason(name: str, error: BaseException) -> str:
    from huggingface_hub import errors

    # A dry run wraps what went wrong.
    cause = error.__cause__ if isinstance(error, errors.DryRunError) else error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return (
            f"{name} is not in the hub's cache and HF_HUB_OFFLINE forbids to fetch it: unset it,"
            " or fetch the model elsewhere and give its folder."
        )
    if isinstance(cause, errors.GatedRepoError):
        return (
            f"{name} is gated: accept its licence on its page, run `hf auth login`, and try again."
        )
    if isinstance(cause, errors.RepositoryNotFoundError):
        return (
            f"There is no folder {name}, and the hub has no model of that name, or it is private:"
            " check the name, or run `hf auth login` if it is yours."
        )
    if isinstance(cause, errors.HfHubHTTPError):
        return f"The hub refused {name} (status {cause.response.status_code}): try again later."
    detail = next(iter(str(cause).splitlines()), "") or type(cause).__name__
    return (
        f"{name} is not on this machine and the hub cannot be reached ({detail}): go online and"
        " try again."
    )


def _reporter(tell: Callable[[int], None] | None = None, before: int = 0) -> Any:
    """A class for the hub's progress bars: shows nothing, and tells how many bytes have come.

    `before` is how many there were before these bars.
    """
    from tqdm import tqdm

    class Reporter(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.counts_bytes = options.get("unit") == "B"
            super().__init__(*arguments, **options, disable=True)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if tell and self.counts_bytes:
                tell(before + int(self.n))

    return Reporter
