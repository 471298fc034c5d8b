"""Put a converted folder on the hub."""

from __future__ import annotations

from pathlib import Path

from ..errors import DFlashError

CARD = """---
library_name: mlx
pipeline_tag: text-generation
tags:
- mlx
{base}---

# {repository}

Converted{source} with `dflash-mlx convert`.
"""


def write_card(folder: Path, repository: str, origin: str | None) -> None:
    """A README.md that names the model's origin, a repository of the hub (None: unknown)."""
    base = f"base_model: {origin}\n" if origin else ""
    source = f" from [{origin}](https://huggingface.co/{origin})" if origin else ""
    text = CARD.format(base=base, repository=repository, source=source)
    (folder / "README.md").write_text(text, encoding="utf-8")


def upload(folder: Path, repository: str, *, private: bool) -> None:
    """Create `repository` if it is not there, and upload the folder. Raises DFlashError."""
    from huggingface_hub import HfApi, errors

    try:
        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=repository)
    except (OSError, ValueError, errors.HTTPError, errors.HFValidationError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DFlashError(
            f"{folder} is whole, but the upload to {repository} failed ({reason}): run"
            " `hf auth login`, then `hf upload`."
        ) from error
