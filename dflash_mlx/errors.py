"""The errors that a person is meant to read."""

from __future__ import annotations

import errno


class DFlashError(Exception):
    """One clear sentence: what is wrong and how to mend it. Printed without a traceback."""

    exit_code = 1


class UsageError(DFlashError):
    """A flag or argument that cannot be used as given."""

    exit_code = 2


def sentence(error: OSError) -> str:
    """What the operating system refused, for a person, with what to do where that is known."""
    where = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"The disk is full{where}: free some space and run the command again."
        case errno.EFBIG:
            return f"A file would pass the limit on file sizes{where}: raise it (ulimit -f)."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"Permission denied{where}: check who may read and write there."
        case _:
            return f"{error.strerror or error}{where}."
