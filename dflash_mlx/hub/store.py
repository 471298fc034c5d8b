"""Folders that are either whole or absent, under the program's own cache.

A folder is made inside a workshop beside its destination, `.<name>.partial/`, and renamed into
place at the end. A lock in the workshop lets one process work at a time; the system drops the lock
of a process that dies, so whoever holds it may clear what the last one left behind:

    .<name>.partial/lock    held while somebody works
    .<name>.partial/new     the folder in the making
    .<name>.partial/old     the folder being replaced, between two renames
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DFlashError

FULL = {errno.ENOSPC, errno.EDQUOT}
BLOCKED = {errno.ENOTDIR, errno.EEXIST}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, *BLOCKED}


def home() -> Path:
    """The user's home folder. Raises DFlashError for a user who has none, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        raise DFlashError("There is no home folder: let HOME name one.") from None


def cache_root() -> Path:
    """Where conversions and the embedded pair live unless the user says otherwise."""
    return home() / ".cache" / "dflash-mlx"


@contextmanager
def atomic_folder(
    destination: Path, *, replace: bool = False, waiting: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Give an empty folder that becomes `destination` on success and vanishes on any failure.

    Raises `DFlashError` if `destination` exists (unless `replace`), cannot be written, or the disk
    is full.
    """
    with claimed(destination, waiting) as new:
        yield new
        publish(new, destination, replace=replace)


@contextmanager
def claimed(destination: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Give an empty folder in `destination`'s workshop, which no other process shares.

    Waits for another process that works on the same destination, and calls `waiting` before; the
    other may have finished it when this one gets its turn, so look again. `publish` moves the
    folder into place; without it the folder is removed.
    """
    workshop = destination.parent / f".{destination.name}.partial"
    made = [folder for folder in destination.parents if not folder.exists()]
    with writing(destination):
        lock = _locked(workshop, waiting)
        try:
            _mend(workshop, destination)
            new = workshop / "new"
            new.mkdir()
            yield new
        finally:
            # Removing the lock file last, and before its release, lets a waiting process notice.
            _mend(workshop, destination)
            (workshop / "lock").unlink(missing_ok=True)
            with suppress(OSError):
                for folder in (workshop, *made):  # those that are empty again
                    folder.rmdir()
            os.close(lock)


def publish(new: Path, destination: Path, *, replace: bool = False) -> None:
    """Rename `new`, a claimed folder, to `destination`; an old folder there goes if `replace`."""
    if destination.exists():
        if not replace:
            raise DFlashError(f"{destination} exists already: remove it or choose another place.")
        destination.rename(new.parent / "old")
    new.rename(destination)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden place into one sentence that says the cure.

    Other errors of the system pass as they are.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DFlashError(
                f"The disk is full at {place.parent}: free some space and run again."
            ) from error
        if error.errno == errno.EFBIG:
            raise DFlashError(
                f"A file in {place.parent} would pass the limit on file sizes: raise it (ulimit -f)"
                " and run again."
            ) from error
        if error.errno in REFUSED:
            where = Path(error.filename2 or error.filename or place)  # the second: renamed to
            if where.name.startswith(f".{place.name}."):  # what becomes `place` in the end
                where = place
            obstacle = _file_above(where) if error.errno in BLOCKED else None
            if obstacle:
                raise DFlashError(
                    f"{obstacle} is a file where a folder should be: move it away and run again."
                ) from error
            raise DFlashError(
                f"{where} cannot be written ({error.strerror}): choose a place where you may write."
            ) from error
        raise


def _file_above(place: Path) -> Path | None:
    """The file, if there is one, that stands where `place` or a folder around it should be."""
    return next((path for path in (place, *place.parents) if path.is_file()), None)


def check_space(folder: Path, needed: int) -> None:
    """Raise DFlashError unless the disk where `folder` is, or will be, has `needed` bytes free."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DFlashError(
            f"{folder} needs {in_words(needed)} and the disk has {in_words(free)} left: "
            "free some space and run again."
        )


def in_words(nbytes: int) -> str:
    """A number of bytes as a person reads it: "93 MB", "4.6 GB"."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def _locked(workshop: Path, waiting: Callable[[], None]) -> int:
    """Hold the lock of `workshop`, made if need be; returns the open file."""
    path, waited = workshop / "lock", False
    while True:
        try:
            workshop.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # its owner has just removed the workshop
        except FileExistsError as error:
            other = os.path.lexists(workshop) and not workshop.is_dir()
            if other or error.filename != str(workshop):
                raise
            continue  # likewise, while `mkdir` looked whether it is a folder
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    waiting()
                waited = True
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(path.stat(), os.fstat(lock)):
                return lock
        except FileNotFoundError:
            pass  # the owner finished and removed the file that we waited for
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _mend(workshop: Path, destination: Path) -> None:
    """Clear what a process left behind; give back the folder that it was about to replace."""
    shutil.rmtree(workshop / "new", ignore_errors=True)
    old = workshop / "old"
    if old.exists() and not destination.exists():
        old.rename(destination)
    shutil.rmtree(old, ignore_errors=True)
