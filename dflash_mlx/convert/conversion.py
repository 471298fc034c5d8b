"""A conversion, step by step: open lazily, prepare (nothing is computed), write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map

from ..belonging import trained_thinking
from ..drafter.draft_vocab import FILE, write_draft_vocab
from ..drafter.model import Drafter
from ..errors import UsageError
from ..hub.resolve import describes_drafter
from ..model_folder import read_json
from . import drafter, target
from .counted import count_answers, coverage, most_frequent
from .files import companion_bytes, copy_companions, parameters, write_weights
from .float16 import check_activations, check_weights
from .quantize import Quantization, bits_per_weight, kept_by_globs, quantizable, quantize
from .report import Report, count_layers
from .source import Source


@dataclass(frozen=True)
class Wishes:
    """What becomes of a model; None leaves it as it is.

    `draft_vocab` tokens are chosen by counting `answers`, files of conversations. `for_zlab` is for
    drafters: only what z-lab's own readers know.
    """

    quantization: Quantization | None = None
    dtype: str | None = None
    draft_vocab: int | None = None
    answers: Sequence[Path] = ()
    for_zlab: bool = False


@dataclass
class Prepared:
    """A model ready to be written, its report, and the draft vocabulary that is new with it."""

    source: Source
    report: Report
    draft_vocab: list[int] | None = None
    counted: bool = True

    @property
    def is_drafter(self) -> bool:
        """Whether it drafts, rather than talks."""
        return isinstance(self.source.model, Drafter)

    @property
    def nbytes(self) -> int:
        """What the folder will take on the disk, in bytes."""
        return self.report.nbytes[1] + companion_bytes(self.source.folder)

    @property
    def name(self) -> str:
        """What tells it from other conversions of the same model: "4bit", or "16bit"."""
        earlier = self.source.config.get("quantization")
        if isinstance(earlier, dict) and "bits" in earlier:
            return f"{earlier['bits']}bit"
        return f"{8 * max(a.dtype.size for a in parameters(self.source.model).values())}bit"


def open_source(folder: Path, *, only_headers: bool = False, for_zlab: bool = False) -> Source:
    """The target or drafter in `folder`, whichever it is; nothing is computed."""
    if describes_drafter(read_json(folder / "config.json")):
        return drafter.open_drafter(folder, for_zlab=for_zlab)
    if for_zlab:
        raise UsageError("--packaging is for drafters: this is a language model.")
    return target.open_target(folder, only_headers=only_headers)


def prepare(source: Source, wishes: Wishes, device: str, *, only_headers: bool = False) -> Prepared:
    """Cast and quantize lazily; float16 is tried on the calibration prompt unless `only_headers`.

    Raises DFlashError and UsageError.
    """
    is_drafter = isinstance(source.model, Drafter)
    if wishes.quantization:  # said before anything takes its time
        kept_by_globs(quantizable(source.model), wishes.quantization.keep)
    ids = _draft_vocabulary(source, wishes)
    dtype = wishes.dtype or (None if is_drafter else target.own_dtype(source.config))
    if wishes.for_zlab:
        dtype = dtype or "bfloat16"
    if wishes.dtype == "float16" and not only_headers:
        check_weights(source)
        if not is_drafter:
            peak = check_activations(source, device)
            source.notes.append(f"activations reach {peak:,.0f} of float16's 65,504")
    if dtype:
        source.cast(dtype)
    report = Report(_kind(source), (source.tensors, 0), (source.nbytes, 0), notes=source.notes)
    if wishes.quantization:
        done = quantize(source.model, wishes.quantization, source.config.get("quantization"))
        source.config["quantization"] = source.config["quantization_config"] = done.config
        report.layers, report.kept = done.layers, done.kept
    if is_drafter and (mode := trained_thinking(source.folder)) is not None:
        source.config["enable_thinking"] = mode
    weights = parameters(source.model)
    nbytes = sum(array.nbytes for array in weights.values())
    report.tensors = (source.tensors, len(weights))
    report.nbytes = (source.nbytes, nbytes)
    report.bits_per_weight = bits_per_weight(source.model, nbytes)
    inherited = None if ids or wishes.for_zlab else _inherited_vocabulary(source)
    return Prepared(source, report, ids or inherited, counted=inherited is None)


def write(prepared: Prepared, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write everything into the existing, empty `folder`. The model is used up by it."""
    source = prepared.source
    copy_companions(source.folder, folder, but=source.left_out)
    module = drafter if prepared.is_drafter else target
    module.write_config(source, folder)
    if prepared.draft_vocab is not None:
        origin = "counted answers" if prepared.counted else "the packaging that it came in"
        write_draft_vocab(folder, prepared.draft_vocab, origin)
    weights = parameters(source.model)
    # The model lets go of its arrays, so that each is freed once it is written.
    source.model.update(tree_map(lambda _: mx.array([]), source.model.parameters()))
    write_weights(weights, folder, progress)


def _kind(source: Source) -> str:
    if isinstance(source.model, Drafter):
        return f"a DFlash drafter of {count_layers(source.model.config.num_layers)}"
    layers = count_layers(len(getattr(source.model, "layers", ())))
    return f"{source.config.get('model_type')} of {layers}"


def _inherited_vocabulary(source: Source) -> list[int] | None:
    """A draft vocabulary that was no file beside the weights, and has to become one."""
    if not isinstance(source.model, Drafter) or (source.folder / FILE).exists():
        return None
    ids = source.model.config.draft_vocab
    return list(ids) if ids is not None else None


def _draft_vocabulary(source: Source, wishes: Wishes) -> list[int] | None:
    if wishes.draft_vocab is None:
        return None
    if not isinstance(source.model, Drafter):
        raise UsageError("--draft-vocab is for drafters: this is a language model.")
    if source.model.config.own_head:
        raise UsageError("This drafter has a draft vocabulary, and a head for just that, already.")
    if not wishes.answers:
        raise UsageError(
            "--draft-vocab counts the answers of the target: name files of conversations by"
            " --answers, such as the trainer writes."
        )
    size = source.model.config.vocab_size
    counts = count_answers(wishes.answers, size)
    ids = most_frequent(counts, wishes.draft_vocab)
    share = coverage(counts, ids)
    source.notes.append(f"{FILE}: {len(ids):,} of {size:,} tokens, {share:.1%} of the answers")
    return ids
