"""Taps are the outputs of the layers that a drafter names; taking them leaves no trace."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.errors import DFlashError
from dflash_mlx.target.model import Target
from tests.tiny import MIXED, Script, random_drafting, run, tiny_target

LAYERS = 6


class AddingLayer(nn.Module):
    """Adds 10**index to the stream, so that a sum tells which layers it passed."""

    def __init__(self, index: int, as_tuple: bool) -> None:
        super().__init__()
        self.index = index
        self.as_tuple = as_tuple

    def __call__(self, x: mx.array, cache: Any = None) -> Any:
        if self.index == 5 and x.shape[1] == 13:
            raise ZeroDivisionError
        out = x + 10**self.index
        return (out, None) if self.as_tuple else out


class AddingBody(nn.Module):
    """An embedding of zeros, `LAYERS` layers, and a norm that must not reach a tap."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(7, 2)
        self.embed_tokens.weight = mx.zeros((7, 2))
        self.layers = [AddingLayer(index, as_tuple) for index in range(LAYERS)]
        self.norm = nn.RMSNorm(2)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        x = self.embed_tokens(tokens)
        for layer, entry in zip(self.layers, cache, strict=True):
            x = layer(x, entry)
            x = x[0] if isinstance(x, tuple) else x
        return self.norm(x)


class AddingModel(nn.Module):
    """As mlx-lm has it: a body in `model`, and a head."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        self.model = AddingBody(as_tuple)
        self.lm_head = nn.Linear(2, 7, bias=False)

    @property
    def layers(self) -> list[AddingLayer]:
        return self.model.layers

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return self.lm_head(self.model(tokens, cache))


def adding_target(taps: tuple[int, ...], model: AddingModel | None = None) -> Target:
    """A target whose tap of layer i is 1...1, i + 1 digits."""
    return Target(model or AddingModel(), {"model_type": "adding", "hidden_size": 2}, taps)


def taps_of(target: Target, rows: int = 3) -> mx.array:
    """The taps of a pass over `rows` tokens."""
    _, taps = target.forward(mx.zeros((1, rows), mx.int32), target.make_cache())
    assert taps is not None
    return taps


@pytest.mark.parametrize("as_tuple", [False, True], ids=["plain layers", "layers with tuples"])
@pytest.mark.parametrize("ids", [(0,), (5,), (1, 3, 4), (4, 0, 2), tuple(range(LAYERS))])
def test_a_tap_is_the_stream_after_its_layer(ids: tuple[int, ...], as_tuple: bool) -> None:
    """Report 22: not before it, and in the order of the ids; the last layer's without the norm."""
    target = adding_target(ids, AddingModel(as_tuple))

    taps = taps_of(target)

    after = [float("1" * (index + 1)) for index in ids]
    assert taps.shape == (1, 3, 2 * len(ids))
    assert taps[0].tolist() == [[value for value in after for _ in range(2)]] * 3


def test_two_targets_on_one_model_have_taps_of_their_own() -> None:
    model = AddingModel()
    first, second = adding_target((0, 1), model), adding_target((2,), model)

    for _ in range(2):
        assert taps_of(first)[0, 0].tolist() == [1, 1, 11, 11]
        assert taps_of(second)[0, 0].tolist() == [111, 111]


def test_a_target_without_taps_gives_none() -> None:
    target = adding_target(())

    logits, taps = target.forward(mx.zeros((1, 2), mx.int32), target.make_cache())

    assert logits.shape == (1, 2, 7)
    assert taps is None


def test_layers_are_of_their_own_class_again_after_a_pass() -> None:
    model = AddingModel()
    names = [name for name, _ in model.named_modules()]
    target = adding_target((1, 5), model)

    taps_of(target)

    assert [type(layer) for layer in model.layers] == [AddingLayer] * LAYERS
    assert [name for name, _ in model.named_modules()] == names


def test_layers_are_of_their_own_class_again_after_an_exception() -> None:
    target = adding_target((1, 5))

    with pytest.raises(ZeroDivisionError):
        taps_of(target, rows=13)

    assert [type(layer) for layer in target.model.layers] == [AddingLayer] * LAYERS
    assert taps_of(target)[0, 0].tolist() == [11, 11, 111111, 111111]


def test_a_generation_changes_no_class_of_mlx_or_mlx_lm() -> None:
    """Report 19: another model of the same class, loaded later, must not meet our traces."""
    target = tiny_target("qwen3")
    before = attributes_of_foreign_classes()

    truth, _, _ = run(target, [5, 6, 7], 6)
    run(
        target,
        [5, 6, 7],
        6,
        drafting=Script(truth, 3, MIXED, random_drafting(target)),
        block_size=4,
    )

    assert attributes_of_foreign_classes() == before


def attributes_of_foreign_classes() -> dict[str, dict[str, int]]:
    """Every attribute of every class of mlx and mlx-lm, by the identity of its value."""
    classes = [each for each in gc.get_objects() if isinstance(each, type)]
    return {
        f"{each.__module__}.{each.__qualname__}": {k: id(v) for k, v in vars(each).items()}
        for each in classes
        if str(each.__module__).split(".")[0] in ("mlx", "mlx_lm")
    }


@pytest.mark.parametrize("ids", [(0, 6), (-1,)])
def test_a_tap_beyond_the_layers_is_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(DFlashError, match=r"taps layers .* but the target has 6 layers"):
        adding_target(ids)


def test_a_targets_sizes_are_read_off_the_model() -> None:
    target = tiny_target("llama")

    assert (target.num_layers, target.vocab_rows, target.hidden_size) == (2, 128, 32)
    assert target.context_limit == 2048
    assert target.dtype == mx.float32
    assert adding_target(()).context_limit is None
