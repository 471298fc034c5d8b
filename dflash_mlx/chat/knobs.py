"""What /set shows and changes: the flags of a chat that can change while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from .loop import Chat


@dataclass(frozen=True)
class Knob:
    """A value by its flag's name: how to read it from text, where it is, and its default."""

    name: str
    parse: Callable[[str], Any]
    get: Callable[[Chat], Any]
    set: Callable[[Chat, Any], None]
    default: Callable[[Chat], Any]
    none: str = ""

    def text(self, value: Any) -> str:
        """A value as a person writes it."""
        if value is None:
            return self.none
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

    def change(self, chat: Chat, text: str) -> None:
        """Set the value that `text` says, or "default". Raises UsageError."""
        try:
            value = self.default(chat) if text == "default" else self.parse(text)
        except (ValueError, KeyError):
            raise UsageError(f"{self.name} cannot be {text!r}.") from None
        self.set(chat, value)


def _sampling(name: str, parse: Callable[[str], Any]) -> Knob:
    def change(chat: Chat, value: Any) -> None:
        options = chat.session.options
        chat.session.options = replace(options, sampling=replace(options.sampling, **{name: value}))

    return Knob(
        name.replace("_", "-"),
        parse,
        lambda chat: getattr(chat.session.options.sampling, name),
        change,
        lambda chat: getattr(chat.pair.defaults, name),
    )


def _option(name: str, none: str, parse: Callable[[str], Any] = int, default: Any = None) -> Knob:
    def change(chat: Chat, value: Any) -> None:
        options = replace(chat.session.options, **{name: value})
        chat.pair.copies(options)  # what the pair cannot do is refused at once
        chat.session.options = options

    return Knob(
        name.replace("_", "-"),
        parse,
        lambda chat: getattr(chat.session.options, name),
        change,
        lambda chat: default,
        none,
    )


def _switch(name: str, owner: Callable[[Chat], Any], default: Any, none: str = "") -> Knob:
    return Knob(
        name.replace("_", "-"),
        lambda text: {"on": True, "off": False}[text],
        lambda chat: getattr(owner(chat), name),
        lambda chat, value: setattr(owner(chat), name, value),
        lambda chat: default,
        none,
    )


KNOBS = (
    _sampling("temperature", float),
    _sampling("top_p", float),
    _sampling("top_k", int),
    _sampling("min_p", float),
    _sampling("repetition_penalty", float),
    _sampling("presence_penalty", float),
    _sampling("frequency_penalty", float),
    _option("seed", "drawn for each reply"),
    _option("max_tokens", "to the context's end"),
    _option("block_size", "", lambda text: text if text == "auto" else int(text), "auto"),
    _option("copy", "beside a drafter", lambda text: {"on": True, "off": False}[text]),
    _switch("thinking", lambda chat: chat.session, None, "the pair's own way"),
    _switch("show_thinking", lambda chat: chat.view, False),
    _switch("loop_stop", lambda chat: chat, True),
)


def find_knob(name: str) -> Knob:
    """The knob whose name begins so. Raises UsageError where there is none, or several."""
    found = [knob for knob in KNOBS if knob.name.startswith(name.replace("_", "-"))]
    if len(found) == 1:
        return found[0]
    raise UsageError(f"There is nothing named {name} to set: /set lists what there is.")


def describe(chat: Chat) -> str:
    """All values, one a line, with the defaults of those that were changed."""
    width = max(len(knob.name) for knob in KNOBS)
    lines = []
    for knob in KNOBS:
        value, default = knob.get(chat), knob.default(chat)
        was = "" if value == default else f"  (default: {knob.text(default)})"
        lines.append(f"{knob.name:<{width}}  {knob.text(value)}{was}")
    return "\n".join(lines)
