"""A chat template taken apart: the tokens around what a user says, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..pair import Pair

_WORDS = ("Zebra11crossing", "Yellow22submarine", "Xylo33phone")
"""Stand-ins for what is said, which no template holds."""


@dataclass(frozen=True)
class Template:
    """Token ids. opening: up to the user's first words. reply: from the end of a user's words to
    where the reply begins. following: from behind a reply's end-of-turn token to the user's next
    words; None where earlier replies are not kept as they were written (reasoning is dropped), so
    that a second turn would not be what is served.
    """

    opening: list[int]
    reply: list[int]
    following: list[int] | None


def take_apart(pair: Pair, system: str | None, thinking: bool | None) -> Template:
    """The pieces of the pair's template. Raises UsageError where it changes what is said."""
    first = [{"role": "system", "content": system}] if system else []
    first.append({"role": "user", "content": _WORDS[0]})
    opening, reply = _around(pair.render(first, thinking), _WORDS[:1])
    history = [
        *first,
        {"role": "assistant", "content": _WORDS[1]},
        {"role": "user", "content": _WORDS[2]},
    ]
    following = None
    try:
        before, answer, between, _ = _around(pair.render(history, thinking), _WORDS)
    except UsageError:
        pass  # a template for one turn only
    else:
        if (before, answer) == (opening, reply):
            following = pair.encode(between)
            if following and following[0] in pair.stop_tokens:
                following = following[1:]  # the reply's own last token
    return Template(pair.encode(opening), pair.encode(reply), following)


def _around(rendered: str, words: tuple[str, ...]) -> list[str]:
    """The texts before, between and after the words."""
    pieces = []
    for word in words:
        before, found, rendered = rendered.partition(word)
        if not found:
            raise UsageError("The model's chat template does not show what the user says.")
        pieces.append(before)
    return [*pieces, rendered]
