"""Answers for a peer, inside the peer's own Python: `PYTHON -I peer_adapter.py NAME`.

A stand-alone script that knows nothing of this project, since an environment with a peer may hold
other versions of everything (one peer even shares this package's name). One JSON object a line each
way: `{"load": ...}` once, then `{"tokens": [...], "max_tokens": n, "sampling": {...}, "seed": n}`
for every answer. What the peer prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

Rounds = Iterator[tuple[list[int], Any]]


def cast(module: Any, dtype: str) -> None:
    """Float weights in `dtype`, as those of the engine that the peer is compared with."""
    import mlx.core as mx

    module.set_dtype(getattr(mx, dtype))
    mx.eval(module.parameters())


class ZLab:
    """z-lab's `dflash`."""

    package, settings = "dflash", ("temperature", "top_p", "top_k")

    def load(self, model: str, draft: str, dtype: str) -> None:
        from dflash import model_mlx

        if Path(draft).is_dir():  # it asks a hub for every name, a folder's too
            model_mlx.snapshot_download = lambda folder, **_: folder
        self.target, self.tokenizer = model_mlx.load(model)
        self.drafter = model_mlx.load_draft(draft)
        cast(self.target, dtype)
        cast(self.drafter, dtype)

    def rounds(self, tokens: list[int], limit: int, sampling: dict[str, Any], seed: int) -> Rounds:
        import mlx.core as mx
        from dflash import model_mlx

        mx.random.seed(seed)
        rows = self.drafter.config.block_size
        for n, said in enumerate(
            model_mlx.stream_generate(
                self.target, self.drafter, self.tokenizer, tokens, max_tokens=limit, **sampling
            )
        ):
            if said.tokens:
                yield said.tokens, (len(said.tokens) - 1, rows - 1) if n else None


class Bstnxbt:
    """bstnxbt's `dflash-mlx`, greedy only."""

    package, settings = "dflash-mlx", ()

    def load(self, model: str, draft: str, dtype: str) -> None:
        context = import_module("dflash_mlx.runtime.context")
        self.context = context.build_offline_runtime_context()
        self.bundle = import_module("dflash_mlx.runtime.bundle").load_runtime_bundle(
            model_ref=model, draft_ref=draft, draft_quant="none", verify_config=self.context.verify
        )
        cast(self.bundle.target_model, dtype)
        cast(self.bundle.draft_model, dtype)

    def rounds(self, tokens: list[int], limit: int, sampling: dict[str, Any], seed: int) -> Rounds:
        bundle, runtime = self.bundle, import_module("dflash_mlx.runtime")
        for event in runtime.stream_dflash_generate(
            target_model=bundle.target_model,
            target_ops=bundle.target_ops,
            tokenizer=bundle.tokenizer,
            draft_model=bundle.draft_model,
            draft_backend=bundle.draft_backend,
            prompt_tokens_override=tokens,
            max_new_tokens=limit,
            stop_token_ids=runtime.get_stop_token_ids(bundle.tokenizer),
            runtime_context=self.context,
        ):
            kind = type(event).__name__
            if kind == "TokenEvent":
                yield [event.token_id], None
            elif kind == "CycleCompleteEvent":
                yield [], (event.acceptance_len, event.block_len - 1)


class Dspark:
    """`mlx-dspark`, by its DFlash half."""

    package, settings = "mlx-dspark", ("temperature", "top_p", "top_k")

    def load(self, model: str, draft: str, dtype: str) -> None:
        from mlx_dspark.load import load_dflash, load_target

        self.target, self.tokenizer = load_target(model, require_tap=True)
        self.drafter, _ = load_dflash(draft, quantize=False)
        cast(self.target.model, dtype)
        cast(self.drafter, dtype)
        self.drafter.bind(self.target.model)

    def rounds(self, tokens: list[int], limit: int, sampling: dict[str, Any], seed: int) -> Rounds:
        from mlx_dspark.generate import dflash_generate

        done = dflash_generate(
            self.target,
            self.tokenizer,
            self.drafter,
            prompt_ids=tokens,
            max_new_tokens=limit,
            seed=seed,
            **sampling,
        )
        # It tells its times itself, and only at the end.
        self.prefill = done.prefill_seconds
        yield done.token_ids[:1], None
        rows = self.drafter.config.block_size
        for kept in done.accept_lengths:
            yield [], (max(kept - 1, 0), rows - 1)
        yield done.token_ids[1:], None


class Vlm:
    """`mlx-vlm`, whose targets are the families that it has a hook for."""

    package, settings = "mlx-vlm", ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

    def load(self, model: str, draft: str, dtype: str) -> None:
        from mlx_vlm import load
        from mlx_vlm.speculative.drafters import load_drafter, validate_drafter_compatibility

        self.target, self.processor = load(model)
        self.drafter, self.kind = load_drafter(draft)
        validate_drafter_compatibility(self.target, self.drafter, self.kind)
        cast(self.target, dtype)
        cast(self.drafter, dtype)

    def rounds(self, tokens: list[int], limit: int, sampling: dict[str, Any], seed: int) -> Rounds:
        import mlx.core as mx
        from mlx_vlm.generate import stream_generate

        mx.random.seed(seed)
        for said in stream_generate(
            self.target,
            self.processor,
            "",
            input_ids=mx.array([tokens]),
            max_tokens=limit,
            draft_model=self.drafter,
            draft_kind=self.kind,
            **sampling,
        ):
            if said.token is not None:
                yield [int(said.token)], None


PEERS = {peer.package: peer for peer in (ZLab, Bstnxbt, Dspark, Vlm)}


def answer(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One answer: its tokens, its rounds as (accepted, drafted), and its two times in seconds."""
    sampling = {k: v for k, v in request["sampling"].items() if k in peer.settings}
    peer.prefill = None
    tokens: list[int] = []
    rounds, begin, first = [], time.perf_counter(), None
    for said, drafted in peer.rounds(
        request["tokens"], request["max_tokens"], sampling, request["seed"]
    ):
        tokens += said
        first = first or (time.perf_counter() if said else None)
        if drafted:
            rounds.append(drafted)
    end = time.perf_counter()
    prefill = peer.prefill if peer.prefill is not None else (first or end) - begin
    return {"tokens": tokens, "rounds": rounds, "prefill": prefill, "decode": end - begin - prefill}


def main() -> None:
    """Read requests and write replies until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = PEERS[sys.argv[1]]()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                about = request["load"]
                if about["openblas"]:  # before MLX is imported, as in the engine's own process
                    ctypes.CDLL(about["openblas"], mode=ctypes.RTLD_GLOBAL)
                peer.load(about["model"], about["draft"], about["dtype"])
                reply = {"version": version(peer.package), "settings": peer.settings}
            else:
                reply = answer(peer, request)
        except Exception as error:  # whatever a peer may raise is told to who asked
            reply = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
