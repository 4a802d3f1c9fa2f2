"""What the serving gates measured, before and after, out of the steps' figures. Pure.

A gate may journal its statistic under `speed` (figures of `onhost.judge.speed`) and its comparison of
tokens under `agreement` (figures of `onhost.judge.agreement.judge_tokens`); where it has not, the samples are
compared here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddtree_deploy.onhost.judge.agreement import Continuation, judge_tokens


def measurements(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{before, after, speed, tokens, acceptance}; each None where nothing was measured."""
    results = {s["kind"]: s["figures"] or {} for s in steps if s["figures"]}
    old, new, said, accepted = (results.get(k, {}) for k in ("baseline", "benchmark", "tokens", "acceptance"))
    before = side(old.get("sample"), old.get("bench"))
    after = side(new.get("sample") or said.get("sample") or accepted.get("sample"), new.get("after"))
    return {
        "before": before,
        "after": after,
        "speed": new.get("speed"),
        "tokens": said.get("agreement") or tokens(old.get("sample"), said.get("sample")),
        "acceptance": accepted.get("acceptance") or new.get("acceptance"),
    }


def side(sample: dict[str, Any] | None, bench: dict[str, Any] | None) -> dict[str, Any] | None:
    """One side: {algorithm, steps_per_token, accept_length, accept_lengths, rounds, figures, also}.

    accept_lengths: tokens per verify step of each request. rounds: [{tokens_per_s, seconds, completed,
    requested, ttft_ms, tpot_ms}].
    """
    if not sample and not bench:
        return None
    sample, bench = sample or {}, bench or {}
    requested = (bench.get("bench") or {}).get("num_prompts")
    rounds = bench.get("rounds") or []
    return {
        "algorithm": sample.get("speculative") or "none",
        "steps_per_token": sample.get("steps_per_token"),
        "accept_length": sample.get("accept_length"),
        "accept_lengths": _accept_lengths(sample),
        "rounds": [_round(r, requested) for r in rounds],
        "figures": bench.get("figures") or {},
        "also": bench.get("also") or [],
    }


def by_name(side: dict[str, Any] | None) -> dict[str, Any]:
    """One side's figures, flat: what is counted over all its requests, then those of its rounds."""
    own = {name: (side or {}).get(name) for name in ("algorithm", "steps_per_token", "accept_length")}
    return {name: value for name, value in own.items() if value is not None} | (
        (side or {}).get("figures") or {}
    )


def _accept_lengths(sample: dict[str, Any]) -> list[float]:
    pairs = zip(sample.get("completion") or [], sample.get("verify_steps") or [], strict=False)
    return [round(tokens / steps, 4) for tokens, steps in pairs if steps]


def _round(raw: dict[str, Any], requested: int | None) -> dict[str, Any]:
    return {
        "tokens_per_s": raw.get("output_throughput"),
        "seconds": raw.get("duration"),
        "completed": raw.get("completed"),
        "requested": requested * raw.get("repeats", 1) if requested else requested,
        "ttft_ms": raw.get("median_ttft_ms"),
        "tpot_ms": raw.get("median_tpot_ms"),
    }


def tokens(reference: dict[str, Any] | None, candidate: dict[str, Any] | None) -> dict[str, Any] | None:
    """Figures of the comparison token for token, from two samples; None when one is missing."""
    if not reference or not candidate:
        return None
    one, two = (
        [Continuation(str(i), list(t)) for i, t in enumerate(s.get("outputs") or [])]
        for s in (reference, candidate)
    )
    return judge_tokens(one, two, epsilon=0.0).figures


def flat(figures: Any, prefix: str = "") -> dict[str, Any]:
    """Nested figures as `a.b` -> scalar, for tables and diffs; lists are left out."""
    if not isinstance(figures, dict):
        return {}
    out: dict[str, Any] = {}
    for key, value in figures.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            out |= flat(value, f"{name}.")
        elif not isinstance(value, list):
            out[name] = value
    return out
