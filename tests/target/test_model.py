"""What a target gives besides logits: taps, the embedding as it enters, and the bare head."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.errors import DFlashError
from dflash_mlx.target.model import Target
from dflash_mlx.target.watch import Watch
from tests.families.models import BITS, FAMILIES, WINDOW, build, config_of, family_target
from tests.tiny import HIDDEN, VOCABULARY, same_bits

TOKENS = mx.array([[5, 17, 99, 3, 120, 44]])
NORMS = ("norm", "norm_f", "embedding_norm")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_tap_through_norm_and_head_is_the_models_logits(
    family: str, bits: int | None
) -> None:
    """Taps are what layers put out, before the final norm; the head is the model's own."""
    target = family_target(family, bits)
    logits, taps = target.forward(TOKENS, target.make_cache())
    assert taps is not None
    norm = next(getattr(target.body, name) for name in NORMS if hasattr(target.body, name))

    ours = target.head(norm(taps[..., HIDDEN:]))

    if family == "gemma4":
        ours = mx.tanh(ours / 10.0) * 10.0  # the model's own softcap
    assert ours.shape == (1, 6, VOCABULARY)
    assert mx.allclose(ours, logits, atol=1e-5).item()


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_as_they_enter_the_first_layer(family: str) -> None:
    """Gemma's carry a factor of sqrt(D)."""
    target = family_target(family)
    with Watch({0: target.body.layers[0]}).on() as notes:
        target.model(TOKENS, cache=target.make_cache())

    entering = notes[0].args[0]

    assert mx.allclose(target.embed(TOKENS), entering, rtol=1e-6).item()
    assert target.dtype == entering.dtype
    assert (target.embedding_scale > 5) == family.startswith("gemma")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_with_taps_gives_the_logits_of_one_without(family: str) -> None:
    target = family_target(family)
    bare = Target(target.model, target.config)

    logits, taps = bare.forward(TOKENS, bare.make_cache())

    assert taps is None
    assert same_bits([logits], [target.forward(TOKENS, target.make_cache())[0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_listed_family_can_draft(family: str) -> None:
    target = family_target(family)

    assert target.rollback_refusal() is None
    assert target.vocab_rows == VOCABULARY
    assert target.hidden_size == HIDDEN


def test_layers_that_are_not_there_cannot_be_tapped() -> None:
    with pytest.raises(DFlashError, match=r"taps layers \[0, 9\], but the target has 2"):
        Target(build("llama"), config_of("llama"), (0, 9))


def test_a_model_without_layers_is_refused_by_name() -> None:
    model = build("llama")
    model.trunk = model.pop("model")

    with pytest.raises(
        DFlashError, match=r"mlx_lm\.models\.llama has no layers that dflash-mlx can find"
    ):
        Target(model, config_of("llama"))


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_windows_are_kept_by_us_and_full_layers_by_mlx_lm(family: str) -> None:
    names = {type(entry).__name__ for entry in family_target(family).make_cache()}

    assert names == {"SlidingCache", "KVCache"}
    assert family_target(family).make_cache()[0].max_size == WINDOW


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_has_the_bits_of_its_rows_one_at_a_time(family: str) -> None:
    """What identity with plain decoding stands on, windows and recurrences included."""
    target = family_target(family)
    text = [(13 * i * i + 5) % 120 for i in range(3 * WINDOW)]
    logits = []
    for size in (1, 4):
        cache = target.make_cache()
        parts = []
        for place in range(0, len(text), size):
            with target.round(cache, size) as turn:
                parts.append(turn.forward(mx.array([text[place : place + size]]))[0])
                mx.eval(parts)
                turn.commit(size)
        logits.append(mx.concatenate(parts, axis=1))

    assert same_bits(logits[:1], logits[1:])


@pytest.mark.parametrize("family", ["mistral3", "gemma3_text", "gemma4", "gpt_oss", "nemotron_h"])
def test_our_caches_say_what_mlx_lms_own_say(family: str) -> None:
    """Its rings sum in another order once they have wrapped, hence the tolerance."""
    target = family_target(family)
    ours, theirs = target.make_cache(), make_prompt_cache(target.model)
    place = 0
    for size in (5, 1, 1, 9, 1, 4, 1, 1, 12, 1):
        tokens = mx.array([[(13 * i * i + 5) % 120 for i in range(place, place + size)]])
        with target.round(ours, size) as turn:
            logits, _ = turn.forward(tokens)
            mx.eval(logits)
            turn.commit(size)

        expected = target.model(tokens, cache=theirs)

        assert mx.allclose(logits, expected, atol=1e-4).item()
        assert mx.array_equal(mx.argmax(logits, -1), mx.argmax(expected, -1)).item()
        place += size
