"""The target: an mlx-lm model that also gives its taps, its embedding and its head.

Taps are the outputs of some decoder layers, which the drafter is conditioned on. They are
captured without patching a class and without wrapping a module: for the length of one forward
pass, each tapped layer *instance* is of a subclass of its own class that notes its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..errors import DFlashError
from .rollback import Round, refusal

_CAPTURE = Lock()
"""One forward pass with taps is built at a time: threads may share a model's layers."""


class Target:
    """A target model with taps on the layers `tap_ids` (0-based, each layer's output).

    Two targets may share one mlx-lm model, with different taps, in one process.
    """

    def __init__(
        self, model: nn.Module, config: dict[str, Any], tap_ids: Sequence[int] = ()
    ) -> None:
        self.model = model
        self.config = config
        self.text_config: dict[str, Any] = {**config, **config.get("text_config", {})}
        self.tap_ids = tuple(tap_ids)
        self._body = _body(model)
        layers = self._body.layers
        if any(not 0 <= i < len(layers) for i in self.tap_ids):
            raise DFlashError(
                f"The drafter taps layers {list(tap_ids)}, but the target has {len(layers)} layers:"
                " they are not a pair."
            )
        self._outputs: dict[int, mx.array] = {}
        self._tapped = [(layers[i], self._tapped_class(layers[i], i)) for i in self.tap_ids]

    @property
    def body(self) -> nn.Module:
        """The part of the model that holds the embedding, the decoder layers and the last norm."""
        return self._body

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self._body.layers)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding table, of which a tokenizer may use fewer."""
        return int(self._body.embed_tokens.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        return int(self.text_config["hidden_size"])

    @property
    def context_limit(self) -> int | None:
        """The longest context that the model was made for, in tokens; None if it does not say."""
        limit = self.text_config.get("max_position_embeddings")
        return int(limit) if limit else None

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the activations: that of the norms, which are never quantized."""
        return self._body.norm.weight.dtype

    def make_cache(self) -> list[Any]:
        """Fresh, empty caches, one a layer, of mlx-lm's kinds."""
        return make_prompt_cache(self.model)

    def rollback_refusal(self) -> str | None:
        """Why this target cannot draft (its caches cannot be rolled back); None if it can."""
        return refusal(self.make_cache())

    def round(self, cache: list[Any]) -> Round:
        """A transaction over `cache`; see `rollback`."""
        return Round(cache)

    def forward(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array | None]:
        """One pass over `tokens` [B, L], appended to `cache`.

        Returns logits [B, L, V] and taps [B, L, T*D] in the order of `tap_ids` (None without any).
        Both are lazy: logits that nobody evaluates are never computed.
        """
        if not self._tapped:
            return self.model(tokens, cache=cache), None
        with self._capture() as outputs:
            logits = self.model(tokens, cache=cache)
            taps = mx.concatenate([outputs[i] for i in self.tap_ids], axis=-1)
        return logits, taps

    def embed(self, tokens: mx.array) -> mx.array:
        """Embedding rows [B, L, D] of `tokens` [B, L], as a drafter takes them."""
        return self._body.embed_tokens(tokens)

    def head(self, hidden: mx.array) -> mx.array:
        """The LM head, tied or not, on final hidden rows [B, L, D]: logits [B, L, V]."""
        head: Callable[[mx.array], mx.array] | None = getattr(self.model, "lm_head", None)
        return (head or self._body.embed_tokens.as_linear)(hidden)

    def _tapped_class(self, layer: nn.Module, index: int) -> type[nn.Module]:
        """A subclass of the layer's own class whose instances note what they put out."""
        outputs = self._outputs
        plain: Any = type(layer)

        class Tapped(plain):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                out = super().__call__(*args, **kwargs)
                outputs[index] = out[0] if isinstance(out, tuple) else out
                return out

        Tapped.__name__ = plain.__name__
        return Tapped

    @contextmanager
    def _capture(self) -> Iterator[dict[int, mx.array]]:
        """Tap the layers for one forward pass; the dictionary fills with their outputs."""
        with _CAPTURE:
            try:
                for layer, tapped in self._tapped:
                    layer.__class__ = tapped
                yield self._outputs
            finally:
                for layer, tapped in self._tapped:
                    layer.__class__ = tapped.__base__
                self._outputs.clear()


def _body(model: nn.Module) -> nn.Module:
    """The part of an mlx-lm model that owns the decoder layers and the embedding table."""
    for path in ("model", "language_model.model"):
        part: Any = model
        for name in path.split("."):
            part = getattr(part, name, None)
        if hasattr(part, "layers") and hasattr(part, "embed_tokens"):
            return part
    raise DFlashError(
        f"{type(model).__module__} keeps its layers in a place that dflash-mlx does not know:"
        " this architecture is not supported yet."
    )
