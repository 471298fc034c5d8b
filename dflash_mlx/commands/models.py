"""`dflash-mlx models`: what is on this machine, what would fit it, and how to get or drop it."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hub.download import cached_repository, missing_bytes
from ..hub.embedded import NAME, ensure_target
from ..hub.fit import CONTEXT, Machine, Need, cache_shape, loaded_bytes, this_machine
from ..hub.inventory import Held, drafter_name, find, held_models, hub_cache, remove
from ..hub.registry import DRAFTER_CACHE, PAIRS, KnownPair, known_pair, pair_of_drafter
from ..hub.resolve import Role, is_whole, resolve
from ..hub.store import check_space, in_words
from ..model_folder import read_json
from .loading import setup_progress, silence_libraries


def show(cache_dir: Path | None) -> None:
    """Print the models on this machine, each target with its drafter, and the known pairs."""
    machine = this_machine()
    print("On this machine")
    print(_columns(_held_rows(held_models(cache_dir))))
    fitting = [pair for pair in PAIRS if pair.need(machine).fits(machine)]
    room = in_words(machine.usable)
    print(f"\nKnown pairs that fit in the {room} that models may take here, the best first")
    print(_columns([_known_row(pair, machine) for pair in fitting]) or "  none")
    print("\nToo large for this machine")
    print(_names([pair for pair in PAIRS if pair not in fitting]))
    print(
        "\n`dflash-mlx models pull NAME` fetches a pair. Sizes of known pairs are estimates, with"
        "\nthe target in 4 bits."
    )


def pull(name: str, cache_dir: Path | None) -> None:
    """Fetch a model and its known drafter; nothing is asked of the network if both are here."""
    silence_libraries()
    if name == NAME:
        with setup_progress() as tell:
            folder = ensure_target(tell, root=cache_dir)
        print(f"{NAME} is at {folder}; its drafter is part of dflash-mlx.")
        return
    pair = known_pair(name)
    target = _repository(name, pair)
    halves: list[tuple[str, Role]] = [(target, "target")]
    if pair:
        halves.append((pair.drafter, "drafter"))
        if not pair.need(this_machine()).fits(this_machine()):
            print(f"note: {pair.name} is too large for this machine's memory", file=sys.stderr)
    else:
        print(f"note: no drafter is known for {name}", file=sys.stderr)
    check_space(hub_cache(), sum(missing_bytes(half) for half, _ in halves if not _is_here(half)))
    for half, role in halves:
        with setup_progress() as tell:
            found = resolve(half, role, tell)
        print(f"{half} is at {found.folder}")
    print(f"Talk with it: dflash-mlx chat --model {target}")


def rm(name: str, yes: bool, cache_dir: Path | None) -> None:
    """Remove one model, after asking unless `yes`, and print the bytes that this freed."""
    models = held_models(cache_dir)
    model = find(name, models)
    if not yes and not _agreed(f"Remove {name} ({in_words(model.nbytes)}) from {model.place}?"):
        print("Nothing was removed.")
        return
    print(f"Removed {name}: {remove(model):,} bytes freed.")
    drafter = drafter_name(model) if model.role == "target" else None
    if any(other.name == drafter and other.origin == "hub" for other in models):
        print(f"Its drafter is still here: `dflash-mlx models rm {drafter}` removes it.")


def info(name: str, cache_dir: Path | None) -> None:
    """Print what is known of a model, on this machine or not."""
    models = held_models(cache_dir)
    pair = known_pair(name) or pair_of_drafter(name)
    held = next((model for model in models if model.name == name), None)
    if held is None and pair is None:
        find(name, models)  # says that it is not here
    target = held if held and held.role == "target" else _target_of(pair, held, models)
    wanted = drafter_name(target) if target else pair.drafter if pair else None
    drafter = held if held and held.role == "drafter" else _first(models, wanted)
    rows = [
        ["target", *_half(target, pair.model if pair else None, pair.model_bytes if pair else 0)],
        ["drafter", *_half(drafter, wanted, pair.drafter_bytes if pair else 0)],
    ]
    if pair and pair.thinking is not None:
        rows.append(["trained on", f"replies {'with' if pair.thinking else 'without'} reasoning"])
    if memory := _memory(target, drafter, pair):
        rows.append(["memory", memory])
    print(name)
    print(_columns(rows))


def _repository(name: str, pair: KnownPair | None) -> str:
    """The repository that `pull NAME` means. Raises UsageError."""
    if other := pair_of_drafter(name):
        raise UsageError(f"{name} is the drafter of {other.name}: pull that, and it comes along.")
    if "/" in name:
        return name
    if pair is None or name.lower() not in (n.lower() for n in (pair.name, *pair.also)):
        raise UsageError(
            f"{name} is not a known pair: `dflash-mlx models` lists them; other models of the hub"
            " are named as org/name."
        )
    return pair.model


def _is_here(name: str) -> bool:
    folder = cached_repository(name)
    return folder is not None and is_whole(folder)


def _agreed(question: str) -> bool:
    """Ask at the terminal; only yes is yes. Raises UsageError where nobody can answer."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is there to answer: give --yes.")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _target_of(pair: KnownPair | None, drafter: Held | None, models: Sequence[Held]) -> Held | None:
    """A target on this machine that the pair, or a drafter here, is of; in any quantization."""
    if drafter and drafter.origin == "shipped":
        return _first(models, NAME)
    targets = (model for model in models if model.role == "target" and pair)
    return next((model for model in targets if known_pair(model.name) is pair), None)


def _first(models: Sequence[Held], name: str | None) -> Held | None:
    return next((model for model in models if model.name == name), None)


def _held_rows(models: Sequence[Held]) -> list[list[str]]:
    """A row a target, its drafter below it, and then the drafters whose target is not here."""
    rows, seen = [], set[str]()
    for target in (model for model in models if model.role == "target"):
        name = drafter_name(target)
        drafter = _first(models, name)
        rows.append([target.name, *_held_cells(target)])
        if drafter:
            seen.add(drafter.name)
            rows.append([f"+ {drafter.name}", *_held_cells(drafter)])
        elif name:
            rows.append([f"+ {name}", f"not here: `dflash-mlx models pull {target.name}`"])
        else:
            rows.append(["+ no known drafter"])
    alone = [model for model in models if model.role == "drafter" and model.name not in seen]
    return rows + [[model.name, *_held_cells(model), _targetless(model)] for model in alone]


def _targetless(drafter: Held) -> str:
    pair = pair_of_drafter(drafter.name)
    name = NAME if drafter.origin == "shipped" else pair.name if pair else None
    return f"its target: `dflash-mlx models pull {name}`" if name else "its target is not known"


def _held_cells(model: Held) -> list[str]:
    if model.origin == "shipped":
        return [in_words(model.nbytes), "part of dflash-mlx"]
    used = _ago(model.used) if model.used is not None else "unfinished: pull it again"
    return [in_words(model.nbytes), used, _short(model.place)]


def _known_row(pair: KnownPair, machine: Machine) -> list[str]:
    size = in_words(pair.model_bytes + pair.drafter_bytes)
    return [pair.name, size, _room(pair.need(machine), machine, None), f"+ {pair.drafter}"]


def _room(need: Need, machine: Machine, limit: int | None) -> str:
    """How many tokens of context fit, to the thousand; never more than the model's `limit`."""
    tokens = need.longest_context(machine)
    if limit and tokens >= limit:
        return f"room for its whole context of {limit:,} tokens"
    return f"room for {tokens // 1000:,},000 tokens" if tokens >= 1000 else "hardly any room"


def _names(pairs: Sequence[KnownPair]) -> str:
    """The names of pairs, in lines."""
    names = ", ".join(pair.name for pair in pairs) or "none"
    return textwrap.fill(
        names, 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _half(model: Held | None, name: str | None, estimate: int) -> list[str]:
    """The cells of one half of a pair, on this machine or not."""
    if model:
        return [model.name, *_held_cells(model)]
    if name is None:
        return ["not known"]
    return [name, f"about {in_words(estimate)}" if estimate else "", "not here"]


def _memory(target: Held | None, drafter: Held | None, pair: KnownPair | None) -> str | None:
    """What the pair takes and how far this machine's memory reaches; None if that is unknown."""
    machine, limit = this_machine(), None
    need = pair.need(machine) if pair else None
    if target and target.whole:
        config = read_json(target.folder / "config.json")
        need = _need(target, config, drafter, machine) or need
        limit = {**config, **(config.get("text_config") or {})}.get("max_position_embeddings")
    if need is None:
        return None
    takes = f"about {in_words(need.bytes_at(CONTEXT))} with {CONTEXT:,} tokens of context"
    has = f"models may take {in_words(machine.usable)} here"
    if not need.fits(machine):
        return f"{takes}: too much, {has}"
    return f"{takes}; {has}: {_room(need, machine, limit)}"


def _need(
    target: Held, config: Mapping[str, Any], drafter: Held | None, machine: Machine
) -> Need | None:
    """What models on this machine take, by their own files; None if the config is no help."""
    width = machine.float_bytes
    shape = cache_shape(config)
    if shape is None:
        return None
    weights, per_token = loaded_bytes(target.folder, width), shape.token_bytes(width)
    if drafter and drafter.whole:
        own = cache_shape(read_json(drafter.folder / "config.json")) or DRAFTER_CACHE
        weights += loaded_bytes(drafter.folder, width)
        per_token += own.token_bytes(width)
    return Need(weights, per_token)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines whose cells are aligned; the last cell of a row may be as long as it likes."""
    most = max(map(len, rows), default=0)
    widths = [max((len(r[i]) for r in rows if i < len(r) - 1), default=0) for i in range(most)]
    cells = [[cell.ljust(width) for cell, width in zip(row, widths, strict=False)] for row in rows]
    return "\n".join(f"  {'  '.join(row)}".rstrip() for row in cells)


def _ago(moment: float) -> str:
    """When a model was last used, in days."""
    days = int((time.time() - moment) // 86400)
    return {0: "used today", 1: "used yesterday"}.get(max(days, 0), f"used {days} days ago")


def _short(place: Path) -> str:
    """A path with the home folder as `~`."""
    try:
        return f"~/{place.relative_to(Path.home())}"
    except ValueError:
        return str(place)
