"""`dflash-mlx generate`: one prompt, one answer, on standard output alone."""

from __future__ import annotations

import json
import sys

from ..api import Prompt, encode, gather
from ..chat.view import columns
from ..engine.events import FRUITLESS_NOTE, Event, Stats
from ..engine.generation import stream
from ..engine.text import check_text
from ..errors import UsageError
from ..pair import Pair
from .arguments import GenerateArguments
from .loading import load_for, prefill_progress, tune
from .statsline import fold, format_stats, to_json


def run(arguments: GenerateArguments) -> None:
    """Answer the prompt; with Ctrl-C, what came until then and its statistics."""
    prompt = _prompt(arguments)
    pair = load_for(arguments)
    tune(pair, arguments.options(pair.defaults))
    events: list[Event] = []
    try:
        _answer(pair, prompt, arguments, events)
    except KeyboardInterrupt:
        if events and not arguments.json:
            print()
            _print_stats(events[-1].stats, None)
        raise
    if arguments.json:
        print(json.dumps(to_json(gather(events)), ensure_ascii=False))
    else:
        print()
        _print_stats(events[-1].stats, events[-1].finish_reason)


def _print_stats(stats: Stats, finish_reason: str | None) -> None:
    print(fold(format_stats(stats, finish_reason), columns(sys.stderr)), file=sys.stderr)
    if stats.fruitless:
        print(f"note: {FRUITLESS_NOTE}", file=sys.stderr)


def _prompt(arguments: GenerateArguments) -> str | list[dict[str, str]]:
    """A raw text, or messages for the chat template."""
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    check_text(text)
    if not text:
        raise UsageError("The prompt is empty: give some text to --prompt.")
    if arguments.ignore_chat_template:
        if arguments.system:
            raise UsageError("--system needs the chat template: leave out --ignore-chat-template.")
        return text
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    return [*system, {"role": "user", "content": text}]


def _answer(pair: Pair, prompt: Prompt, arguments: GenerateArguments, events: list[Event]) -> None:
    """Generate, collecting the events and, unless JSON is wanted, printing text as it comes."""
    options = arguments.options(pair.defaults)
    with prefill_progress() as progress:
        answer = stream(
            pair,
            pair.context(),
            encode(pair, prompt),
            options,
            continuing=arguments.ignore_chat_template,
            progress=progress,
        )
        for event in answer:
            events.append(event)
            if not arguments.json:
                print(event.text, end="", flush=True)
