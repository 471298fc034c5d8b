"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

from ..errors import UsageError
from .clipboard import copy
from .knobs import KNOBS, describe, find_knob
from .saved import name_for_now
from .state import PairNames

if TYPE_CHECKING:
    from .loop import Chat


def _nothing(_chat: Chat) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Command:
    """A command: how it is called, what it does in a few words, and what Tab offers for it."""

    name: str
    arguments: str
    help: str
    run: Callable[[Chat, str], None]
    offers: Callable[[Chat], Sequence[str]] = _nothing


def is_command(line: str) -> bool:
    """Whether a line is meant as a command; a path such as /etc/hosts is not."""
    word = line.split(maxsplit=1)[0] if line.startswith("/") else ""
    return len(word) > 1 and word[1:].isalpha()


def run_command(chat: Chat, line: str) -> None:
    """Run the command that a line calls, perhaps shortened. Raises UsageError if there is none."""
    name, *rest = line.split(maxsplit=1)
    found = [command for command in COMMANDS if command.name.startswith(name)]
    if len(found) == 1:
        found[0].run(chat, rest[0].strip() if rest else "")
    elif found:
        raise UsageError(f"{name} may be {' or '.join(command.name for command in found)}.")
    else:
        close = difflib.get_close_matches(name, [command.name for command in COMMANDS], 1)
        hint = f"did you mean {close[0]}?" if close else "/help lists the commands."
        raise UsageError(f"There is no command {name}: {hint}")


def completions(chat: Chat, text: str) -> list[str]:
    """What the last word of a command that is being typed may become."""
    name, space, argument = text.partition(" ")
    if not space:
        return [command.name for command in COMMANDS if command.name.startswith(name)]
    offers = next((c.offers(chat) for c in COMMANDS if c.name == name), ())
    return [offer for offer in offers if offer.startswith(argument)]


def _help(chat: Chat, _argument: str) -> None:
    calls = [f"{command.name} {command.arguments}".rstrip() for command in COMMANDS]
    indent = max(map(len, calls)) + 2
    lines = [f"{c:<{indent}}{command.help}" for c, command in zip(calls, COMMANDS, strict=True)]
    if chat.view.width is not None and max(map(len, lines)) > chat.view.width:
        lines = [f"{c}\n  {command.help}" for c, command in zip(calls, COMMANDS, strict=True)]
    hints = "Commands may be shortened: /h is /help. TEXT and VALUE may be the word default."
    chat.view.say("\n".join([*lines, "", hints, chat.reader.keys]))


def _new(chat: Chat, _argument: str) -> None:
    chat.begin([])
    chat.view.say("A new conversation.")


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.session.system = None if argument == "default" else argument
    text = chat.session.system
    chat.view.say("The model's own instructions." if text is None else f"Instructions: {text}")


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_pair(_pair_names(argument))
    chat.view.say(chat.describe_pair())


def _pair_names(argument: str) -> PairNames:
    try:
        return PairNames(*shlex.split(argument))
    except (ValueError, TypeError):
        raise UsageError("/model takes a name and perhaps a drafter; quote spaces.") from None


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if value:
        find_knob(name).change(chat, value.strip())
    elif name:
        knob = find_knob(name)
        chat.view.say(f"{knob.name} {knob.text(knob.get(chat))}")
        return
    chat.view.say(describe(chat))


def _stats(chat: Chat, _argument: str) -> None:
    chat.view.say(chat.describe_reply())


def _undo(chat: Chat, _argument: str) -> None:
    question = chat.session.undo()
    chat.forget_reply()
    chat.view.say(f"Taken back: {question}")


def _retry(chat: Chat, _argument: str) -> None:
    if chat.session.options.sampling.greedy:
        chat.view.say("At temperature 0 the answer stays the same: /set temperature 0.7, say.")
    chat.answer(None)


def _save(chat: Chat, argument: str) -> None:
    name = argument or chat.saved_as or name_for_now()
    path = chat.saved.save(
        name,
        chat.session.messages,
        chat.pair.configuration.model,
        replace=name == chat.saved_as,
    )
    chat.saved_as = name
    chat.view.say(f"Saved in {path}; /load {name} brings it back.")


def _load(chat: Chat, argument: str) -> None:
    if not argument:
        names = chat.saved.names()
        chat.view.say("\n".join(names) if names else "Nothing was saved yet: /save does.")
        return
    chat.begin(chat.saved.load(argument), argument)
    questions = [m["content"] for m in chat.session.messages if m["role"] == "user"]
    answers = "1 answer" if len(questions) == 1 else f"{len(questions)} answers"
    last = f"; the last question was: {shorten(questions[-1], 200)}" if questions else "."
    chat.view.say(f"Loaded {argument}, with {answers}{last}")


def _thinking(chat: Chat, _argument: str) -> None:
    thinking = chat.reply.thinking.strip()
    chat.view.aside(thinking or "The last reply came without thinking.")


def _copy(chat: Chat, _argument: str) -> None:
    if not chat.reply.answer:
        raise UsageError("There is no answer to copy yet.")
    copier = copy(chat.reply.answer.strip())
    chat.view.say(f"Copied {len(chat.reply.answer.strip())} characters, by {copier}.")


def _exit(chat: Chat, _argument: str) -> None:
    chat.leaving = True


COMMANDS = (
    Command("/help", "", "list the commands", _help),
    Command("/new", "", "begin a new conversation", _new),
    Command(
        "/system",
        "[TEXT]",
        "show or set the instructions ahead of the talk",
        _system,
        lambda chat: ["default"],
    ),
    Command("/model", "[NAME [DRAFTER]]", "show the pair, or go on with another", _model),
    Command(
        "/set",
        "[NAME [VALUE]]",
        "show the settings, or change one",
        _set,
        lambda chat: [knob.name for knob in KNOBS],
    ),
    Command("/stats", "", "tell all about the last reply", _stats),
    Command("/undo", "", "take back the last question and its answer", _undo),
    Command("/retry", "", "answer the last question anew", _retry),
    Command("/save", "[NAME]", "save the conversation", _save),
    Command(
        "/load",
        "[NAME]",
        "list the saved conversations, or go on with one",
        _load,
        lambda chat: chat.saved.names(),
    ),
    Command("/thinking", "", "print what the model thought before its last answer", _thinking),
    Command("/copy", "", "copy the last answer to the clipboard", _copy),
    Command("/exit", "", "leave", _exit),
)
