"""`dflash-mlx convert`: a model or a drafter becomes an MLX folder, whole or not at all."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..backend import Backend
from ..convert.conversion import Prepared, Wishes, open_source, prepare, write
from ..convert.drafter import settle
from ..convert.gguf import import_gguf, plan_import
from ..convert.gguf_file import read_gguf
from ..convert.gguf_source import gguf_report, losses, sketch, usual_bits
from ..convert.quantize import Quantization
from ..convert.report import Report
from ..convert.source import Source
from ..convert.trial import acceptance, check_companions, tried_rows, try_model
from ..convert.upload import upload, write_card
from ..drafter import Drafter, load_drafter
from ..errors import DFlashError, UsageError
from ..hub.pairs import PairFolders
from ..hub.resolve import Resolved, resolve
from ..hub.store import atomic_folder, check_space
from ..hub.wheel import SetupProgress
from .convert_arguments import ConvertArguments
from .loading import setup_progress, silence_libraries


def run(arguments: ConvertArguments, backend: Backend) -> None:
    """Convert, and print what was done. Raises DFlashError and UsageError."""
    silence_libraries()
    wishes = _wishes(arguments)
    source = _source(arguments)
    with _terminated_like_interrupted(), setup_progress() as tell:
        if source.lower().endswith(".gguf"):
            _Gguf(arguments, wishes, backend, tell, Path(source).expanduser()).run()
        else:
            found = resolve(source, "any", tell, root=arguments.cache_dir)
            _Folder(arguments, wishes, backend, tell, found).run()


def _source(arguments: ConvertArguments) -> str:
    if arguments.source and arguments.hf_path:
        raise UsageError("SOURCE and --hf-path are one thing: give it once.")
    source = arguments.source or arguments.hf_path
    if not source:
        raise UsageError("Say what to convert: a folder, a hub name, or a .gguf file.")
    return source


def _wishes(arguments: ConvertArguments) -> Wishes:
    asked = (arguments.q_bits, arguments.q_group_size, arguments.q_mode, arguments.recipe)
    quantization = None
    if arguments.quantize or any(asked):
        quantization = Quantization(
            arguments.q_bits,
            arguments.q_group_size,
            arguments.q_mode or "affine",
            arguments.recipe,
            tuple(arguments.keep or ()),
        )
    elif arguments.keep:
        raise UsageError("--keep leaves layers out of quantization: it needs -q.")
    if arguments.answers and arguments.draft_vocab is None:
        raise UsageError("--answers are counted for --draft-vocab: give its N.")
    if arguments.private and not arguments.upload_repo:
        raise UsageError("--private is for --upload-repo: name the repository.")
    for_zlab = arguments.packaging == "z-lab"
    if for_zlab and (quantization or arguments.draft_vocab):
        raise UsageError(
            "z-lab's packaging has neither MLX's quantization nor a draft vocabulary: leave out"
            " --packaging, or those."
        )
    return Wishes(
        quantization,
        arguments.dtype,
        arguments.draft_vocab,
        tuple(arguments.answers or ()),
        for_zlab,
    )


class _Job:
    """What conversions of folders and of GGUF files share: the place, the trial, the report."""

    def __init__(
        self, arguments: ConvertArguments, wishes: Wishes, backend: Backend, tell: SetupProgress
    ) -> None:
        self.arguments, self.wishes, self.backend, self.tell = arguments, wishes, backend, tell

    def place(self, name: str, kind: str, source: Path) -> Path:
        """Where the folder will be; raises DFlashError if that cannot be."""
        if self.wishes.quantization:
            kind = self.wishes.quantization.name
        if self.wishes.for_zlab:
            kind = "zlab"
        usual = f"{name}-{kind}" if self.wishes.for_zlab else f"{name}-mlx-{kind}"
        output = self.arguments.output or Path(usual)
        if output.exists() and source.resolve().is_relative_to(output.resolve()):
            raise UsageError(f"{output} holds what is to be converted: choose another -o.")
        if output.exists() and not self.arguments.dry_run:
            if not self.arguments.force:
                raise DFlashError(f"{output} exists already: choose another -o, or --force.")
            if not _replaceable(output):
                raise UsageError(
                    f"{output} is no model folder, and --force replaces nothing else: choose"
                    " another -o."
                )
        return output

    @contextmanager
    def made(self, output: Path) -> Iterator[Path]:
        """The folder in the making, which takes its place in the end."""
        replace = self.arguments.force

        def waiting() -> None:
            self.tell("waiting for another conversion to the same place", 0, 1)

        with atomic_folder(output.resolve(), replace=replace, waiting=waiting) as new:
            yield new

    def writing(self, done: int, total: int) -> None:
        """Progress of the weights."""
        self.tell("converting", done, total)

    def finish(self, report: Report, output: Path, trial: list[str]) -> None:
        """Print what was done."""
        print("\n".join([*report.lines(), *trial]))
        print(f"{'written':12}{output}")

    def plan(self, report: Report, output: Path) -> None:
        """Print what would be done."""
        print("\n".join(report.lines()))
        print(f"{'dry run':12}nothing was written; without --dry-run it goes to {output}")

    def publish(self, output: Path) -> None:
        """Upload, if that was asked for."""
        repository = self.arguments.upload_repo
        if repository is None:
            return
        kind = "private" if self.arguments.private else "public"
        print(f"uploading to the {kind} repository {repository} ...", file=sys.stderr)
        upload(output, repository, private=self.arguments.private)
        print(f"{'uploaded':12}https://huggingface.co/{repository} ({kind})")


class _Folder(_Job):
    """A local folder, or one of the hub's cache."""

    def __init__(
        self,
        arguments: ConvertArguments,
        wishes: Wishes,
        backend: Backend,
        tell: SetupProgress,
        found: Resolved,
    ) -> None:
        super().__init__(arguments, wishes, backend, tell)
        self.found = found

    def run(self) -> None:
        """Convert it."""
        dry = self.arguments.dry_run
        folder, for_zlab = self.found.folder, self.wishes.for_zlab
        source = open_source(folder, only_headers=dry, for_zlab=for_zlab)
        if not dry:
            self._settle_rows(source)
        prepared = prepare(source, self.wishes, self.backend.device, only_headers=dry)
        name = self.found.name.rsplit("/", 1)[-1]
        output = self.place(name, prepared.name, folder)
        if self.arguments.target and not prepared.is_drafter:
            raise UsageError("--target is for drafters: this is a language model.")
        if dry:
            self.plan(prepared.report, output)
            return
        if not prepared.is_drafter:
            check_companions(folder, source.config)
        elif self.arguments.target:
            self._target()  # found, or fetched, before the work begins
        check_space(output.resolve().parent, prepared.nbytes)
        with self.made(output) as new:
            write(prepared, new, self.writing)
            trial = self._try(prepared, new)
            if self.arguments.upload_repo:
                origin = self.found.name if self.found.kind == "hub" else None
                write_card(new, self.arguments.upload_repo, origin)
        self.finish(prepared.report, output, trial)
        self.publish(output)

    def _settle_rows(self, source: Source) -> None:
        """Where nobody says what a drafter's rows predict, and there is a target to try: try."""
        in_doubt = isinstance(source.model, Drafter) and source.model.config.rows_in_doubt
        if in_doubt and self.arguments.target:
            names = self._target()
            settle(source, tried_rows(names, self.found.folder, self.backend))

    def _target(self) -> PairFolders:
        root = self.arguments.cache_dir
        target = resolve(self.arguments.target, "target", self.tell, root=root)
        return PairFolders(target.name, target.folder)

    def _try(self, prepared: Prepared, new: Path) -> list[str]:
        """What the written folder does, loaded afresh."""
        if not prepared.is_drafter:
            changed = self.wishes.quantization or self.wishes.dtype
            original = self.found.folder if changed else None
            return list(try_model(new, self.backend, original).lines())
        load_drafter(new)
        if self.arguments.target is None:
            return []
        names = self._target()
        before = acceptance(names, self.found.folder, self.backend)
        after = acceptance(names, new, self.backend)
        return [f"{'acceptance':12}{_length(before)} -> {_length(after)} on five prompts"]


class _Gguf(_Job):
    """A GGUF file: by its own types, or through floats where -q or --dtype asks for others."""

    def __init__(
        self,
        arguments: ConvertArguments,
        wishes: Wishes,
        backend: Backend,
        tell: SetupProgress,
        path: Path,
    ) -> None:
        super().__init__(arguments, wishes, backend, tell)
        self.path = path
        if arguments.target or wishes.draft_vocab:
            raise UsageError("--target and --draft-vocab are for drafters: a GGUF holds a model.")

    def run(self) -> None:
        """Convert it."""
        if self.wishes.quantization or self.wishes.dtype:
            self._anew()
        else:
            self._as_it_is()

    def _as_it_is(self) -> None:
        file = read_gguf(self.path)
        plan = plan_import(file, nearly=True)
        report = gguf_report(file, plan)
        output = self.place(self.path.stem, f"{usual_bits(plan)}bit", self.path)
        if self.arguments.dry_run:
            self.plan(report, output)
            return
        check_space(output.resolve().parent, plan.nbytes)
        with self.made(output) as new:
            import_gguf(self.path, new, nearly=True, progress=self.writing)
            trial = self._try(new)
        self.finish(report, output, trial)
        self.publish(output)

    def _anew(self) -> None:
        file = read_gguf(self.path)
        dtype = self.wishes.dtype or "float32"
        kind = "32bit" if dtype == "float32" else "16bit"
        output = self.place(self.path.stem, kind, self.path)
        device = self.backend.device
        draft = prepare(sketch(self.path), self.wishes, device, only_headers=True)
        draft.report.notes = losses(file)
        if self.arguments.dry_run:
            self.plan(draft.report, output)
            return
        scratch_bytes = plan_import(file, floats=True).nbytes
        check_space(output.resolve().parent, draft.report.nbytes[1] + scratch_bytes)
        with self.made(output) as new:
            scratch = new / "scratch"
            scratch.mkdir()
            import_gguf(self.path, scratch, floats=True, progress=self.reading)
            prepared = prepare(open_source(scratch), self.wishes, device)
            write(prepared, new, self.writing)
            trial = self._try(new, scratch)
            shutil.rmtree(scratch)
        self.finish(draft.report, output, trial)
        self.publish(output)

    def reading(self, done: int, total: int) -> None:
        """Progress of the floats in between."""
        self.tell("reading", done, total)

    def _try(self, new: Path, floats: Path | None = None) -> list[str]:
        if self.arguments.upload_repo:
            write_card(new, self.arguments.upload_repo, None)
        return list(try_model(new, self.backend, floats).lines())


def _replaceable(folder: Path) -> bool:
    """Whether a folder holds a model, or nothing, so that nobody loses anything else by it."""
    if not folder.is_dir():
        return False
    return (folder / "config.json").is_file() or not any(folder.iterdir())


def _length(acceptance_length: float | None) -> str:
    return "none" if acceptance_length is None else f"{acceptance_length:.2f}"


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
