"""The target: an mlx-lm model that also gives its taps, its embedding and its head.

Taps are the outputs of some decoder layers, which the drafter is conditioned on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..errors import DFlashError
from ..kernels.metal import Metal
from .caches import adapted, kind
from .draft_head import DraftHead
from .kv_bits import group_size
from .replay import Replay, projections
from .rollback import Round
from .row_by_row import RowByRow
from .serving import Serving
from .watch import Notes, Watch

_BODIES = ("model", "language_model.model", "backbone", "language_model", "transformer")
_EMBEDDINGS = ("embed_tokens", "embeddings", "embedding", "wte", "tok_embeddings")


class Target:
    """A target model with taps on the layers `tap_ids` (0-based, each layer's output).

    Two targets may share one mlx-lm model, with different taps, in one process. With `kv_bits`
    (4 or 8) keys and values are cached quantized: UsageError is raised where they cannot be.
    With `metal`, blocks are computed by its kernels where the model's family is listed (`serving`);
    with `fused`, by layers for a CPU with OpenBLAS, and not in the same bits for every row count.
    """

    def __init__(
        self,
        model: nn.Module,
        config: dict[str, Any],
        tap_ids: Sequence[int] = (),
        kv_bits: int | None = None,
        metal: Metal | None = None,
        fused: bool = False,
    ) -> None:
        self.metal = metal
        self.model = model
        self.config = config
        self.text_config: dict[str, Any] = {**config, **config.get("text_config", {})}
        self.tap_ids = tuple(tap_ids)
        self.kv_bits = kv_bits
        self._kv_group = group_size(model, kv_bits) if kv_bits is not None else 64
        self.asked_context: int | None = None
        self.body = _body(model)
        self.embedding = _embedding(self.body)
        layers = self.layers
        if any(not 0 <= i < len(layers) for i in self.tap_ids):
            raise DFlashError(
                f"The drafter taps layers {list(tap_ids)}, but the target has {len(layers)} layers:"
                " they are not a pair. Choose another --draft-model, or --no-draft."
            )
        recurrent = self._recurrent_layers()
        inputs = {(i, p): m for i, at in recurrent.items() for p, m in projections(at).items()}
        self.serving = Serving(model, self.head_module, metal, fused)
        with self.serving.on():  # what is watched is what serves
            self._taps = Watch({i: layers[i] for i in self.tap_ids})
            self._all = Watch({i: layers[i] for i in self.tap_ids} | recurrent | inputs)
        self._row_by_row = RowByRow(m for layer in recurrent.values() for m in layer.modules())
        self.replay = Replay(recurrent, inputs, self._row_by_row)

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The decoder layers."""
        found: Sequence[nn.Module] = self.body.layers
        return found

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding table, of which a tokenizer may use fewer."""
        return int(self.embedding.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        return int(self.text_config.get("hidden_size") or self.text_config["n_embd"])

    @property
    def context_limit(self) -> int | None:
        """The longest context, in tokens: what was asked for, at most what the model was made for.

        None where neither says.
        """
        names = ("max_position_embeddings", "n_positions")
        limit = next((self.text_config[n] for n in names if self.text_config.get(n)), None)
        limits = [int(each) for each in (limit, self.asked_context) if each]
        return min(limits, default=None)

    @property
    def head_module(self) -> nn.Module:
        """What `head` applies: a linear layer, or the embedding table where they are tied."""
        owners = (self.model, getattr(self.model, "language_model", None))
        heads = [getattr(owner, "lm_head", None) for owner in owners]
        return next((head for head in heads if head is not None), self.embedding)

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the activations."""
        return self.embedding(mx.array([[0]])).dtype

    @cached_property
    def embedding_scale(self) -> float:
        """What the model multiplies its embedding rows by: the square root of D in Gemma's."""
        if hasattr(self.body, "embed_scale"):
            return float(self.body.embed_scale)
        gemma = str(self.text_config.get("model_type", "")).startswith("gemma")
        return float(mx.array(self.hidden_size**0.5, mx.bfloat16)) if gemma else 1.0

    def make_cache(self) -> list[Any]:
        """Fresh, empty caches, one a layer: mlx-lm's, or ours where its cannot go back."""
        made = make_prompt_cache(self.model)
        return [adapted(entry, self.kv_bits, self._kv_group) for entry in made]

    def rollback_refusal(self) -> str | None:
        """Why this target cannot draft (its caches cannot be rolled back); None if it can."""
        if self.body is self.model:
            module = type(self.model).__module__.rpartition(".")[2]
            return f"{module} keeps its layers in a place that dflash-mlx does not know"
        cache = self.make_cache()
        unknown = sorted({type(entry).__name__ for entry in cache if not kind(entry).known})
        if unknown:
            return f"its {' and '.join(unknown)} cannot be rolled back"
        try:
            with self.round(cache, 2) as turn:  # lazy: nothing is computed
                turn.forward(mx.array([[0, 0]]))
                turn.commit(1)
        except (RuntimeError, ValueError, TypeError) as error:
            return f"its layers cannot be run again over a part of a block ({error})"
        return None

    def round(self, cache: Sequence[Any], rows: int) -> Round:
        """A transaction of `rows` rows over `cache`; see `rollback`."""
        return Round(self, cache, rows)

    def forward(self, tokens: mx.array, cache: Sequence[Any]) -> tuple[mx.array, mx.array | None]:
        """One pass over `tokens` [B, L], appended to `cache`.

        Returns logits [B, L, V] and taps [B, L, T*D] in the order of `tap_ids` (None without any).
        Both are lazy: logits that nobody evaluates are never computed.
        """
        with self.serving.on(), self._taps.on() as notes:
            return self.model(tokens, cache=cache), self._tapped(notes)

    def noted_forward(
        self, tokens: mx.array, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array | None, Notes]:
        """As `forward` over a block, and what `replay` needs of it."""
        with self.serving.on() as rows, self._all.on() as notes, self._row_by_row.on():
            logits = self.model(tokens, cache=cache)
            return logits, self._tapped(notes), {**notes, **rows}

    def embed(self, tokens: mx.array) -> mx.array:
        """Embedding rows [B, L, D] of `tokens` [B, L], as they enter the first layer."""
        rows = self.embedding(tokens)
        return rows if self.embedding_scale == 1 else rows * self.embedding_scale

    def head(self, hidden: mx.array) -> mx.array:
        """The LM head, tied or not, on final hidden rows [B, L, D]: logits [B, L, V].

        The bare projection: a softcap or a scale that the model has behind it is the model's own.
        """
        head = self.head_module
        with self.serving.on():
            return self.embedding.as_linear(hidden) if head is self.embedding else head(hidden)

    def head_rows(self, ids: Sequence[int]) -> DraftHead:
        """The head over the tokens `ids` alone: a copy of its rows, to be made once."""
        columns = self.serving.fused
        return DraftHead.of(self.head_module, self.head, ids, self.vocab_rows, columns)

    def _tapped(self, notes: Notes) -> mx.array | None:
        if not self.tap_ids:
            return None
        return mx.concatenate([notes[i].out for i in self.tap_ids], axis=-1)

    def _recurrent_layers(self) -> dict[int, nn.Module]:
        """The layers that are given a cache which only a replay brings back."""
        cache = [adapted(entry) for entry in make_prompt_cache(self.model)]
        if all(kind(entry).free for entry in cache):
            return {}
        layers = dict(enumerate(self.layers))
        with Watch(layers).on() as notes:
            self.model(mx.array([[0, 0]]), cache=cache)  # lazy: nothing is computed
        stuck = [entry for entry in cache if kind(entry).known and not kind(entry).reaches(1)]
        return {i: layers[i] for i, call in notes.items() if call.given(stuck)}


def _body(model: nn.Module) -> nn.Module:
    """The part of an mlx-lm model that owns the decoder layers and the embedding table.

    The model itself where that is not known: all of mlx-lm's have their layers as `layers`, so it
    decodes plainly. Raises DFlashError where there are none.
    """
    for path in _BODIES:
        part: Any = model
        for name in path.split("."):
            part = getattr(part, name, None)
        if hasattr(part, "layers") and any(hasattr(part, name) for name in _EMBEDDINGS):
            return part
    if not hasattr(model, "layers"):
        raise DFlashError(
            f"{type(model).__module__} has no layers that dflash-mlx can find: this architecture is"
            " not supported."
        )
    return model


def _embedding(body: nn.Module) -> nn.Module:
    """The embedding table of a model's body, by mlx-lm's names, else the largest."""
    named = next((getattr(body, name) for name in _EMBEDDINGS if hasattr(body, name)), None)
    if named is not None:
        return named
    tables = [m for m in body.modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding)]
    if not tables:
        raise DFlashError(
            f"{type(body).__module__} has no table of embeddings: this architecture is not"
            " supported."
        )
    return max(tables, key=lambda table: table.weight.shape[0])
