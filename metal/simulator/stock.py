"""MLX's stock kernels, launched in the simulator as MLX launches them on Metal.

Only for comparison: the arithmetic of these against MLX's CPU results tests the simulator, and
their counts are what ours are held against. Grids and choices are read off MLX's source of August
2026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .arithmetic import DEFAULT, Arithmetic
from .arrays import to_mlx, to_numpy
from .counts import Counts
from .mlx_kernels import ATTENTION, QUANTIZED, mlx_kernel
from .toolchain import Toolchain

_TYPES = {mx.float32: "float", mx.float16: "half", mx.bfloat16: "bfloat16_t"}

QUANTIZED_KERNELS = ("affine_qmv_fast", "affine_qmv", "affine_qmv_wide", "affine_qmm_t")


def _int(value: int) -> np.ndarray:
    return np.array(value, np.int32)


def _size(value: int) -> np.ndarray:
    return np.array(value, np.uint64)


# Unbatched calls never read these; the kernels take them all the same.
_BATCH: dict[str, np.ndarray] = {
    "x_batch_ndims": np.zeros((), np.int32),
    "x_shape": np.zeros(1, np.int32),
    "x_strides": np.zeros(1, np.int64),
    "w_batch_ndims": np.zeros((), np.int32),
    "w_shape": np.zeros(1, np.int32),
    "w_strides": np.zeros(1, np.int64),
    "s_strides": np.zeros(1, np.int64),
    "b_strides": np.zeros(1, np.int64),
}


@dataclass(frozen=True)
class Stock:
    """Runs MLX's kernels under one model of arithmetic."""

    toolchain: Toolchain
    arithmetic: Arithmetic = DEFAULT

    def quantized_matmul(
        self,
        kernel: str,
        x: mx.array,
        weights: tuple[mx.array, mx.array, mx.array],
        *,
        group_size: int,
        bits: int,
    ) -> tuple[mx.array, Counts]:
        """x [M, K] times quantized weights [N, K] (packed, scales, biases), transposed -> [M, N].

        `kernel` is one of QUANTIZED_KERNELS; `affine_qmv_fast` wants K % 512 == 0 and N % 8 == 0.
        """
        (rows, inner), outer = x.shape, weights[0].shape[0]
        template = f"{_TYPES[x.dtype]}, {group_size}, {bits}"
        y = np.empty((rows, outer), to_numpy(x).dtype)
        arguments: dict[str, np.ndarray] = {**_BATCH, "x": to_numpy(x), "y": y}
        arguments |= dict(zip(("w", "scales", "biases"), map(to_numpy, weights), strict=True))
        if kernel == "affine_qmm_t":
            template += f", {str(outer % 32 == 0).lower()}, false"
            arguments |= {"K": _int(inner), "N": _int(outer), "M": _int(rows)}
            grid, group = (math.ceil(outer / 32) * 32, math.ceil(rows / 32) * 2, 2), (32, 2, 2)
        else:
            arguments |= {"in_vec_size": _int(inner), "out_vec_size": _int(outer), "M": _int(rows)}
            across = rows
            if kernel == "affine_qmv_wide":  # at most 5 rows share a reading of the weights
                across = math.ceil(rows / 5)
                template += f", {math.ceil(rows / across)}, 8"
            template += ", false"
            grid, group = (across * 32, math.ceil(outer / 8) * 2, 1), (32, 2, 1)
        compiled = mlx_kernel(
            self.toolchain, QUANTIZED, kernel, template, contract=self.arithmetic.contract
        )
        counts = compiled.launch(
            arguments, grid=grid, threadgroup=group, outputs=["y"], arithmetic=self.arithmetic
        )
        return to_mlx(y, x.dtype), counts

    def attention(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *,
        scale: float,
        causal: bool = False,
        mask: mx.array | None = None,
        blocks: int = 0,
    ) -> tuple[mx.array, Counts]:
        """queries [B, H, L, D], keys and values [B, Hkv, N, D] -> [B, H, L, D].

        `mask` [B, H, L, N] is bool or of the queries' dtype. `blocks` > 0 splits the keys over that
        many threadgroups (a multiple of 32) in two passes.
        """
        arguments, constants = _attention_arguments(queries, keys, values, scale, mask)
        constants["do_causal"] = causal
        kind, dim = _TYPES[queries.dtype], queries.shape[-1]
        output = np.empty(queries.shape, to_numpy(queries).dtype)
        batch, heads, length, _ = queries.shape
        if not blocks:
            counts = self._attention_launch(
                f"sdpa_vector<{kind}, {dim}, {dim}>",
                {**arguments, "out": output},
                constants,
                grid=(1024 * batch * heads, length, 1),
                threadgroup=(1024, 1, 1),
                outputs=["out"],
            )
            return to_mlx(output, queries.dtype), counts
        kv_heads = keys.shape[1]
        partials: dict[str, np.ndarray] = {
            "out": np.empty((*queries.shape[:3], blocks, dim), output.dtype),
            "sums": np.empty((*queries.shape[:3], blocks), np.float32),
            "maxs": np.empty((*queries.shape[:3], blocks), np.float32),
        }
        first = self._attention_launch(
            f"sdpa_vector_2pass_1<{kind}, {dim}, {dim}>",
            {**arguments, **partials},
            {**constants, "blocks": blocks},
            grid=(32 * kv_heads, heads // kv_heads * batch, length * blocks),
            threadgroup=(32, heads // kv_heads, length),
            outputs=list(partials),
        )
        second = self._attention_launch(
            f"sdpa_vector_2pass_2<{kind}, {dim}>",
            {**partials, "partials": partials["out"], "out": output, "blocks": _int(blocks)},
            {},
            grid=(1024 * batch * heads, length, 1),
            threadgroup=(1024, 1, 1),
            outputs=["out"],
        )
        return to_mlx(output, queries.dtype), first + second

    def _attention_launch(
        self, kernel: str, arguments: dict[str, np.ndarray], constants: dict[str, Any], **call: Any
    ) -> Counts:
        function, _, template = kernel.rstrip(">").partition("<")
        compiled = mlx_kernel(
            self.toolchain, ATTENTION, function, template, contract=self.arithmetic.contract
        )
        off = dict.fromkeys(
            ("has_mask", "bool_mask", "float_mask", "do_causal", "query_transposed", "has_sinks"),
            False,
        )
        compiled.set_constants({**off, **constants})
        return compiled.launch(arguments, arithmetic=self.arithmetic, **call)


def _attention_arguments(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    context, dim = keys.shape[2:]
    arguments = {
        "queries": to_numpy(queries),
        "keys": to_numpy(keys),
        "values": to_numpy(values),
        "gqa_factor": _int(queries.shape[1] // keys.shape[1]),
        "N": _int(context),
        "k_head_stride": _size(context * dim),
        "k_seq_stride": _size(dim),
        "v_head_stride": _size(context * dim),
        "v_seq_stride": _size(dim),
        "scale": np.array(scale, np.float32),
    }
    if mask is None:
        return arguments, {}
    kind = "bool" if mask.dtype == mx.bool_ else "float"
    arguments |= {
        f"{kind[0]}mask": to_numpy(mask),
        "mask_kv_seq_stride": _int(1),
        "mask_q_seq_stride": _int(context),
        "mask_head_stride": _int(queries.shape[2] * context),
    }
    return arguments, {"has_mask": True, f"{kind}_mask": True}
