"""Look into a model's modules without patching a class and without wrapping a module.

For the length of a with-block, each watched module *instance* is of a subclass of its own class
that notes its calls, or that answers from what was noted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

import mlx.nn as nn

LOCK = RLock()
"""One pass is built at a time: threads may share a model's layers, and building takes no time."""


class Call(NamedTuple):
    """What a module was called with, and what it returned (of a tuple, the first item)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    def given(self, things: Sequence[Any]) -> bool:
        """Whether one of `things` itself was among the arguments."""
        arguments = (*self.args, *self.kwargs.values())
        return any(argument is thing for argument in arguments for thing in things)


Notes = dict[Any, Any]
"""A `Call` of every watched module by its key, and what served layers noted of themselves."""


class Watch:
    """Module instances that note their calls while the watch is on."""

    def __init__(self, modules: Mapping[Any, nn.Module]) -> None:
        self._notes: Notes = {}
        self._noting = [(m, self._noting_class(m, key)) for key, m in modules.items()]

    @contextmanager
    def on(self) -> Iterator[Notes]:
        """Watch; the dictionary fills with the last call of every module, by its key."""
        with LOCK:
            notes: Notes = {}
            self._notes = notes
            try:
                with instances_of(self._noting):
                    yield notes
            finally:
                self._notes = {}

    def _noting_class(self, module: nn.Module, key: Hashable) -> type[nn.Module]:
        plain: Any = type(module)
        watch = self

        class Noting(plain):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                out = super().__call__(*args, **kwargs)
                first = out[0] if isinstance(out, tuple) else out
                watch._notes[key] = Call(args, kwargs, first)
                return out

        Noting.__name__ = plain.__name__
        return Noting


class Recall:
    """Module instances that repeat what they returned before, for the first rows of it."""

    def __init__(self, modules: Mapping[Any, nn.Module]) -> None:
        self._notes: Notes = {}
        self._recalling = [(m, self._recalling_class(m, key)) for key, m in modules.items()]

    @contextmanager
    def from_notes(self, notes: Notes) -> Iterator[None]:
        """Answer from `notes`: rows [B, n, ...] of what was returned as [B, L, ...], n <= L."""
        with LOCK:
            self._notes = notes
            try:
                with instances_of(self._recalling):
                    yield
            finally:
                self._notes = {}

    def _recalling_class(self, module: nn.Module, key: Hashable) -> type[nn.Module]:
        plain: Any = type(module)
        recall = self

        class Recalling(plain):
            def __call__(self, rows: Any) -> Any:
                call = recall._notes.get(key)  # none: an interrupt kept this class from going
                return super().__call__(rows) if call is None else call.out[:, : rows.shape[1]]

        Recalling.__name__ = plain.__name__
        return Recalling


@contextmanager
def instances_of(pairs: list[tuple[nn.Module, type[Any]]]) -> Iterator[None]:
    """Have each module be of the subclass beside it; a subclass's first base is its own class."""
    try:
        for module, subclass in pairs:
            module.__class__ = subclass
        yield
    finally:
        for module, subclass in pairs:
            module.__class__ = subclass.__mro__[1]
