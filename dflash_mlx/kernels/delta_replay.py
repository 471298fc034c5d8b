"""A Gated DeltaNet state after the accepted rows of a block, from what the rows left behind."""

from __future__ import annotations

import mlx.core as mx

from .metal import Metal
from .race import Contest

MAX_KEY_DIMS = 256


def delta_replay(
    state: mx.array,
    keys: mx.array,
    values: mx.array,
    gates: mx.array,
    betas: mx.array,
    accepted: mx.array,
    *,
    metal: Metal | None = None,
) -> mx.array:
    """The state after the first `accepted` rows: S = S g, d = (v - S k) beta, S = S + d k^T.

    `state` `[B, Hv, Dv, Dk]` float32, before the block; `keys` `[B, T, Hk, Dk]` normalized as the
    layer does; `values` `[B, T, Hv, Dv]`; `gates` `[B, T, Hv]` (or `[B, T, Hv, Dk]`) and `betas`
    `[B, T, Hv]`, all of them as mlx-lm hands them to `gated_delta_update`; `accepted` `[1]` int32,
    which need not be known on the host. Returns a new state; the one given stays as it is.
    """
    parts = (state, keys, values, gates, betas, accepted)
    if metal is None:
        return twin(*parts)
    shape = " x ".join(map(str, state.shape[1:]))
    contest = Contest(
        f"delta_replay {shape}", lambda: [_kernel(*parts, metal)], lambda: [twin(*parts)]
    )
    if not metal.serves("delta_replay", unsupported(state, keys, values, gates), contest):
        return twin(*parts)
    return _kernel(*parts, metal)


def _kernel(
    state: mx.array,
    keys: mx.array,
    values: mx.array,
    gates: mx.array,
    betas: mx.array,
    accepted: mx.array,
    metal: Metal,
) -> mx.array:
    batch, value_heads, value_dims, key_dims = state.shape
    kernel = metal.kernel(
        "delta_replay",
        ["state_in", "keys", "values", "gates", "betas", "accepted"],
        ["state_out"],
    )
    (after,) = kernel(
        inputs=[state, keys, values, gates, betas, accepted],
        template=[("DK", key_dims), ("DV", value_dims), ("VECTOR", gates.ndim == 4)],
        grid=(32, value_dims // 4, batch * value_heads),
        threadgroup=(32, 4, 1),
        output_shapes=[state.shape],
        output_dtypes=[mx.float32],
    )
    return after


def unsupported(state: mx.array, keys: mx.array, values: mx.array, gates: mx.array) -> str | None:
    """Why the kernel cannot take this call, or None if it can."""
    value_dims, key_dims = state.shape[2:]
    if value_dims % 16 or key_dims % 32 or key_dims > MAX_KEY_DIMS:
        return f"a state of {value_dims} x {key_dims}"
    if values.shape[2] % keys.shape[2]:
        return f"{values.shape[2]} value heads for {keys.shape[2]} key heads"
    return None if state.dtype == mx.float32 else f"a state in {state.dtype}"


def twin(
    state: mx.array,
    keys: mx.array,
    values: mx.array,
    gates: mx.array,
    betas: mx.array,
    accepted: mx.array,
) -> mx.array:
    """`delta_replay` in plain MLX: all rows, of which the accepted ones count."""
    keys = mx.repeat(keys, values.shape[2] // keys.shape[2], axis=2)
    for row in range(keys.shape[1]):
        key, gate = keys[:, row, :, None], gates[:, row, :, None]
        faded = state * (gate if gates.ndim == 4 else gate[..., None])
        recalled = (faded * key).sum(axis=-1)
        delta = (values[:, row] - recalled) * betas[:, row, :, None]
        state = mx.where(row < accepted, faded + key * delta[..., None], state)
    return state
