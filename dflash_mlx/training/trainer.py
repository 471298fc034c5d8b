"""The training step: features, all blocks at once, the loss, AdamW on float32 masters.

    for step in range(...):
        report = trainer.step()

Everything that a step does is decided by the settings and its number, so a run that is stopped and
resumed goes on as if it had not been. Target, embedding and head are frozen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import mlx.core as mx
import mlx.optimizers as optimizers
import numpy as np

from ..drafter import Drafter
from ..drafter.dflash2 import CandidateSelector
from ..errors import DFlashError
from ..target.model import Target
from .blocks import Batch, Schedule
from .checkpoint import Checkpoint
from .conversations import Conversation
from .exponential import Exponential, plain
from .features import Features
from .forward import hidden_states
from .heads import TrainingHead, frequent_tokens
from .initial import Weights, flat, nested
from .loss import Losses, Weighting, decay, decay_gamma, dpace, head_losses
from .second import selector_loss
from .settings import RunSettings


class NotFinite(DFlashError):
    """A loss or a gradient that is no number: the weights before it are still good."""


@dataclass(frozen=True)
class StepReport:
    """What one step did. Times in seconds; `anchor_accept` is over its anchors alone.

    `selector_loss` is what a DFlash 2's selector adds to the loss that the step follows.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    anchor_accept: float
    tokens: int
    anchors: int
    target_seconds: float
    drafter_seconds: float
    head_seconds: float
    selector_loss: float | None = None

    @property
    def seconds(self) -> float:
        """The step as a whole."""
        return self.target_seconds + self.drafter_seconds + self.head_seconds


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Of step `step` (0-based) of `steps`: a line up to the peak, then half a cosine down to 0."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1))) / 2


class Trainer:
    """A drafter in training; `target` has its taps, `dtype` is what passes compute in."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        weights: Weights,
        conversations: Sequence[Conversation],
        features: Features,
        settings: RunSettings,
        exponential: Exponential = plain,
    ):
        self.target = target
        self.drafter = drafter
        self.settings = settings
        # In the drafter's order, wherever they are from: a gradient's norm sums over them in it.
        self.weights = {name: weights[name] for name in flat(drafter.parameters())}
        self.step_number = 0
        block_size = drafter.config.block_size
        self._schedule = Schedule(
            conversations, settings.batch_tokens, settings.anchors, block_size, settings.seed
        )
        self._features = features
        self._exponential = exponential
        self._selector: CandidateSelector | None = getattr(drafter, "candidate_selector", None)
        self._weigh = weighting(settings, block_size)
        self._whole_head = TrainingHead(target, drafter)
        self._small_head: TrainingHead | None = None
        if settings.frequent_tokens:
            tokens = frequent_tokens(conversations, settings.frequent_tokens, target.vocab_rows)
            self._small_head = TrainingHead(target, drafter, tokens)
        self._optimizer = optimizers.AdamW(
            learning_rate=0.0, weight_decay=settings.weight_decay, bias_correction=True
        )
        self._optimizer.init(self.weights)
        self._batches = self._schedule.batches()

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        if self.settings.steps:
            return self.settings.steps
        batches = self.settings.epochs * self._schedule.batches_per_epoch
        return max(math.ceil(batches / self.settings.accumulate), 1)

    @property
    def head(self) -> TrainingHead:
        """The head of the next step: the small one for most of a run, if there is one."""
        early = self.step_number < self.settings.frequent_share * self.steps
        return self._small_head if self._small_head and early else self._whole_head

    def step(self) -> StepReport:
        """One step of the optimizer. Raises NotFinite, the weights being as before it."""
        clock = Clock()
        sums, total, tokens = Losses(), dict[str, mx.array](), 0
        for batch in islice(self._batches, self.settings.accumulate):
            losses, gradients = self.gradients(batch, clock)
            sums.add(losses)
            for name, gradient in gradients.items():
                total[name] = total[name] + gradient if name in total else gradient
            tokens += batch.tokens.size
            mx.eval(total)
        scale = 1 / sums.weight if sums.weight else 0.0
        mean = {name: gradient * scale for name, gradient in total.items()}
        clipped, norm = optimizers.clip_grad_norm(mean, self.settings.clip)
        gradient_norm = cast(float, norm.item())
        if not math.isfinite(sums.mean) or not math.isfinite(gradient_norm):
            raise NotFinite(
                f"Step {self.step_number + 1}: the loss is {sums.mean} and the gradient's norm"
                f" {gradient_norm}, so the run has stopped; lower --learning-rate."
            )
        rate = learning_rate(
            self.step_number, self.steps, self.settings.learning_rate, self.settings.warmup
        )
        self._optimizer.learning_rate = rate
        weights = self._optimizer.apply_gradients(clipped, self.weights)
        mx.eval(weights, self._optimizer.state)
        if not all_finite(self._computing(weights)):
            raise NotFinite(
                f"Step {self.step_number + 1}: a weight has become too large for"
                f" {self.target.dtype}, so the run has stopped; lower --learning-rate."
            )
        self.weights = weights
        clock.lap("drafter")
        self.step_number += 1
        return StepReport(
            step=self.step_number,
            loss=sums.mean,
            gradient_norm=gradient_norm,
            learning_rate=rate,
            anchor_accept=sums.anchor_accept,
            tokens=tokens,
            anchors=sums.blocks,
            selector_loss=None if self._selector is None else sums.selector * scale,
            **{f"{name}_seconds": seconds for name, seconds in clock.laps.items()},
        )

    def trained(self) -> Drafter:
        """The drafter with the weights as they are now, to draft with."""
        self.drafter.update(nested(self._computing(self.weights)))
        return self.drafter

    def checkpoint(self, **state: Any) -> Checkpoint:
        """All that a later process needs to go on, and `state` with it."""
        moments = {
            f"{kind}.{name}": self._optimizer.state[name][kind]
            for name in self.weights
            for kind in ("m", "v")
        }
        return Checkpoint(self.weights, moments, {"step": self.step_number, **state})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on behind a checkpoint."""
        self.weights = {name: checkpoint.weights[name] for name in self.weights}
        self.step_number = int(checkpoint.state["step"])
        self._optimizer.init(self.weights)
        self._optimizer.state["step"] = mx.array(self.step_number, mx.uint64)
        for name in self.weights:
            for kind in ("m", "v"):
                self._optimizer.state[name][kind] = checkpoint.moments[f"{kind}.{name}"]
        self._batches = self._schedule.batches(self.step_number * self.settings.accumulate)

    def _computing(self, weights: Weights) -> Weights:
        """Masters in the type that passes compute in: that of the target's activations."""
        return {name: array.astype(self.target.dtype) for name, array in weights.items()}

    def gradients(self, batch: Batch, clock: Clock) -> tuple[Losses, Weights]:
        """The losses of a batch, and the gradient of sum(w CE) by the masters.

        All that a step computes with another library instead: `scripts/train-with-torch` does.
        """
        config, head = self.drafter.config, self.head
        taps = self._features(batch)
        embeddings = self.target.embed(mx.array(batch.blocks(config.mask_token_id)))
        embeddings = embeddings * config.embedding_scale
        mx.eval(taps, embeddings)
        clock.lap("target")
        real = np.flatnonzero(batch.valid[..., 0])  # anchors that are only padding need no head
        drafts = config.block_size - 1
        tokens = batch.labels.reshape(-1, drafts)[real]
        anchors = np.take_along_axis(batch.tokens, batch.anchors, axis=1).reshape(-1, 1)[real]
        previous = mx.array(np.concatenate([anchors, tokens[:, :-1]], axis=1))
        counts = mx.array(batch.valid.reshape(-1, drafts)[real])
        selector, sums = self._selector, Losses()

        def surrogate(weights: Weights) -> mx.array:
            """Has the loss's gradient: the head's part of it is computed here, in chunks."""
            self.drafter.update(nested(self._computing(weights)))
            hidden = hidden_states(self.drafter, taps, embeddings, mx.array(batch.anchors))
            hidden = hidden.flatten(0, 1)[mx.array(real), 1:]
            mx.eval(hidden)
            clock.lap("drafter")
            losses = head_losses(
                head,
                detached(hidden),
                head.places(tokens),
                counts,
                self._weigh,
                self.settings.head_rows,
                self._exponential,
                selector.top_k if selector else 0,
            )
            sums.add(losses.sums)
            clock.lap("head")
            value = (hidden.astype(mx.float32) * losses.gradient).sum()
            if selector is None:
                return value
            likeliest = losses.candidates._replace(ids=head.tokens(losses.candidates.ids))
            chosen = selector_loss(selector, hidden, previous, mx.array(tokens), likeliest)
            sums.selector += cast(float, chosen.item())
            return value + chosen

        gradients = flat(mx.grad(surrogate)(self.weights))
        mx.eval(gradients)
        clock.lap("drafter")
        return sums, gradients


def weighting(settings: RunSettings, block_size: int) -> Weighting:
    """The weighting of a block's rows that the settings ask for."""
    if settings.loss == "dpace":
        return dpace(settings.alpha)
    return decay(settings.gamma or decay_gamma(block_size))


def all_finite(weights: Weights) -> bool:
    """Whether all values are numbers: beyond 65,504, a master is none in float16."""
    return cast(bool, mx.stack([mx.isfinite(a).all() for a in weights.values()]).all().item())


def detached(array: mx.array) -> mx.array:
    """A copy that no transformation follows.

    What is computed from `mx.stop_gradient` inside `mx.grad` is kept to its end, evaluated or not:
    all chunks of logits would be. So the bits leave MLX and come back.
    """
    bits = mx.uint32 if array.dtype == mx.float32 else mx.uint16
    return mx.array(np.array(array.view(bits))).view(array.dtype)


class Clock:
    """Seconds by part of the step."""

    def __init__(self) -> None:
        self.laps = {"target": 0.0, "drafter": 0.0, "head": 0.0}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last lap to a part."""
        now = time.perf_counter()
        self.laps[part] += now - self._last
        self._last = now
