"""The errors that a person is meant to read."""


class DFlashError(Exception):
    """One clear sentence: what is wrong and how to mend it. Printed without a traceback."""

    exit_code = 1


class UsageError(DFlashError):
    """A flag or argument that cannot be used as given."""

    exit_code = 2
