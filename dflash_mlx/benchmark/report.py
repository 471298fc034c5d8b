"""What was measured, as one object for programs; strata stand side by side, with no one mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ..engine.events import acceptance_by_position, acceptance_length
from ..engine.options import Sampling
from .arms import Arm
from .runner import Bench, Measured, Record
from .sample import Sample
from .statistics import DRIFT, drift, estimate, paired_ratios
from .strata import Stratum

Explain = Callable[[Record, Record], dict[str, Any]]
"""Told plain decoding's answer and another that differs: where they part, and why."""
Speed = Callable[[Sample], float | None]


def to_json(bench: Bench, measured: Measured, explain: Explain | None = None) -> dict[str, Any]:
    """All figures. `explain` is asked once for each arm and stratum whose tokens differ."""
    return {
        "compared_with": bench.arms[0].name,
        "max_tokens": bench.max_tokens,
        "runs": bench.runs,
        "seed": bench.seed,
        "warm_up": {arm: _times([sample]) for arm, sample in measured.warm_up.items()},
        "drift": {
            "tokens_per_second": measured.plain_speeds,
            "share": drift(measured.plain_speeds),
            "too_much": drift(measured.plain_speeds) > DRIFT,
        },
        "failed": measured.failed,
        "notes": notes(bench, measured),
        "strata": {
            stratum.name: _stratum(bench, stratum, measured, explain)
            for stratum in bench.strata
            if any(record.stratum == stratum.name for record in measured.records)
        },
    }


def notes(bench: Bench, measured: Measured) -> list[str]:
    """What whoever reads the figures must know."""
    said = list(measured.notes)
    said += [f"{arm} failed, and was left out: {why}" for arm, why in measured.failed.items()]
    share = drift(measured.plain_speeds)
    if share > DRIFT:
        said.append(
            f"{bench.arms[0].name} changed its speed by {share:.0%} while this ran: let the machine"
            " cool, close what else runs, and measure again"
        )
    for arm in bench.arms:
        own = [record.sample for record in measured.records if record.arm == arm.name]
        if (
            own
            and arm.name.startswith(("block-", "auto", "copy"))
            and not any(s.drafted for s in own)
        ):
            said.append(f"{arm.name} never drafted: its figures are those of plain decoding")
    return said


def _stratum(
    bench: Bench, stratum: Stratum, measured: Measured, explain: Explain | None
) -> dict[str, Any]:
    records = [record for record in measured.records if record.stratum == stratum.name]
    plain = {(r.prompt, r.run): r for r in records if r.arm == bench.arms[0].name}
    arms = {}
    for arm in bench.arms:
        own = [record for record in records if record.arm == arm.name]
        if own:
            arms[arm.name] = _arm(arm, own, plain, stratum.sampling, explain, bench.seed)
    return {
        "sampling": _sampling(stratum.sampling),
        "prompts": len({record.prompt for record in records}),
        "arms": arms,
        "against": _against(bench, records),
    }


def _against(bench: Bench, records: Sequence[Record]) -> dict[str, dict[str, list[float | None]]]:
    """How many times another program's speed our arms have: median, low, high, by both names."""
    by_arm = {arm.name: [r for r in records if r.arm == arm.name] for arm in bench.arms}
    others = [arm.name for arm in bench.arms if not arm.same_rule and by_arm[arm.name]]
    ours = [arm.name for arm in bench.arms if arm.same_rule and by_arm[arm.name]]
    against: dict[str, dict[str, list[float | None]]] = {}
    for other in others:
        theirs = {(r.prompt, r.run): r for r in by_arm[other]}
        for name in ours:
            if gain := estimate(ratios(by_arm[name], theirs, _decode_speed), bench.seed):
                against.setdefault(other, {})[name] = [gain.median, gain.low, gain.high]
    return against


def _arm(
    arm: Arm,
    own: Sequence[Record],
    plain: dict[tuple[str, int], Record],
    sampling: Sampling | None,
    explain: Explain | None,
    seed: int,
) -> dict[str, Any]:
    """The figures of one arm on one stratum."""
    samples = [record.sample for record in own]
    accepted = [count for sample in samples for count in sample.accepted]
    drafted = [count for sample in samples for count in sample.drafted]
    straight = [record for record in own if not record.sample.looped]
    gain = estimate(ratios(own, plain, _decode_speed), seed)
    whole = estimate(ratios(own, plain, _whole_speed), seed)
    pure = estimate(ratios(straight, plain, _decode_speed), seed)
    return {
        "speedup": gain and gain.median,
        "speedup_interval": gain and [gain.low, gain.high],
        "speedup_with_prefill": whole and whole.median,
        "speedup_with_prefill_interval": whole and [whole.low, whole.high],
        "speedup_without_loops": pure and pure.median,
        **_times(samples),
        "acceptance_length": acceptance_length(accepted),
        "per_position": acceptance_by_position(accepted, drafted),
        "rounds": len(accepted),
        "answers": len(samples),
        "looped_answers": len(own) - len(straight),
        "identity": _identity(arm, own, plain, sampling, explain),
    }


def ratios(
    own: Sequence[Record],
    plain: dict[tuple[str, int], Record],
    speed: Speed,
) -> list[float]:
    """How many times plain decoding's speed each prompt had."""
    ours = {(r.prompt, r.run): value for r in own if (value := speed(r.sample))}
    theirs = {key: value for key, r in plain.items() if (value := speed(r.sample))}
    return paired_ratios(ours, theirs)


def _decode_speed(sample: Sample) -> float | None:
    return sample.decode_speed


def _whole_speed(sample: Sample) -> float | None:
    return sample.whole_speed


def _times(samples: Sequence[Sample]) -> dict[str, Any]:
    """Speeds as medians, and where the seconds went, prefill and decoding apart."""
    decode = [speed for s in samples if (speed := s.decode_speed)]
    whole = [speed for s in samples if (speed := s.whole_speed)]
    models = [s.model_seconds for s in samples if s.model_seconds is not None]
    seconds = sum(s.decode_seconds for s in samples)
    return {
        "tokens_per_second": median(decode) if decode else None,
        "tokens_per_second_with_prefill": median(whole) if whole else None,
        "prefill_seconds": median(s.prefill_seconds for s in samples),
        "decode_seconds": median(s.decode_seconds for s in samples),
        "prompt_tokens": sum(s.prompt_tokens for s in samples),
        "generated_tokens": sum(s.generated for s in samples),
        "time": {
            "prefill": sum(s.prefill_seconds for s in samples),
            "decode": seconds,
            "models": sum(models) if models else None,
            "outside": seconds - sum(models) if models else None,
        },
    }


def _identity(
    arm: Arm,
    own: Sequence[Record],
    plain: dict[tuple[str, int], Record],
    sampling: Sampling | None,
    explain: Explain | None,
) -> dict[str, Any] | None:
    """How many answers have plain decoding's tokens; None where they are not meant to."""
    greedy = sampling is not None and sampling.greedy
    pairs = [
        (plain[record.prompt, record.run], record)
        for record in own
        if (record.prompt, record.run) in plain and record.sample.tokens is not None
    ]
    if not pairs or not (greedy or arm.same_rule):
        return None
    apart = [pair for pair in pairs if pair[0].sample.tokens != pair[1].sample.tokens]
    first = explain(*apart[0]) if apart and explain else None
    return {
        "same": len(pairs) - len(apart),
        "compared": len(pairs),
        "first_difference": first,
    }


def _sampling(sampling: Sampling | None) -> dict[str, Any] | str:
    if sampling is None:
        return "the server's own"
    return asdict(sampling) | {"logit_bias": dict(sampling.logit_bias)}
