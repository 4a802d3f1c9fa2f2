"""Measurements -> (verdict, reason). Pure; the verdict is pass, fail or inconclusive, which never passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Judgement(NamedTuple):
    """What a gate says, and why, with the figures that it rests on."""

    verdict: str
    reason: str


def worst(judgements: Sequence[Judgement]) -> Judgement:
    """Fail before inconclusive before pass; the reasons of all that share the worst verdict."""
    if not judgements:
        return Judgement("inconclusive", "nothing was measured")
    for verdict in ("fail", "inconclusive", "pass"):
        reasons = [j.reason for j in judgements if j.verdict == verdict]
        if reasons:
            return Judgement(verdict, "; ".join(reasons))
    raise ValueError(f"unknown verdict in {judgements}")


def answer(tokens: Sequence[int], completion_tokens: int, finish: str, asked: int, *, exact: bool) -> str:
    """What is wrong with one answer; empty when tokens really came back. `exact`: no early end is allowed."""
    if finish == "abort":
        return "the server aborted it"
    if not tokens:
        return "no tokens came back"
    if len(tokens) > asked:
        return f"{len(tokens)} tokens came back, {asked} were asked for"
    if len(tokens) != completion_tokens:
        return f"{len(tokens)} tokens came back, but the server counts {completion_tokens}"
    if exact and len(tokens) != asked:
        return f"{len(tokens)} of {asked} tokens came back"
    return ""


def health(good: int, need: int, requests: int, faults: Sequence[str]) -> Judgement:
    """N of M prompts of our own were answered with tokens."""
    text = f"{good} of {requests} prompts were answered with tokens"
    if good >= need:
        return Judgement("pass", text)
    return Judgement("fail", f"{text}, {need} are needed; {faults[0] if faults else 'none was asked'}")


def tokens(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], max_ties: int = 0) -> Judgement:
    """Greedy outputs of the same prompts, token for token. `max_ties`: prompts that may diverge.

    before, after: token ids, one sequence a prompt, in the same order.
    """
    if not before:
        return Judgement("inconclusive", "there is no reference output")
    if len(before) != len(after):
        return Judgement("inconclusive", f"{len(after)} outputs to compare with {len(before)}")
    found = [
        (i, d) for i, (b, a) in enumerate(zip(before, after, strict=True)) if (d := divergence(b, a)) >= 0
    ]
    count = sum(len(b) for b in before)
    if not found:
        return Judgement("pass", f"{len(before)} prompts, {count} tokens: all equal")
    i, position = found[0]
    text = (
        f"{len(found)} of {len(before)} prompts differ from the old service; first: prompt {i}, "
        f"position {position}: {_token(before[i], position)} before, {_token(after[i], position)} now"
    )
    if len(found) <= max_ties:
        return Judgement("pass", f"{text} (up to {max_ties} are allowed)")
    return Judgement("fail", text)


def divergence(before: Sequence[int], after: Sequence[int]) -> int:
    """The first position (0-based) at which two outputs differ; -1 when they are equal."""
    for i, (b, a) in enumerate(zip(before, after, strict=False)):
        if b != a:
            return i
    return -1 if len(before) == len(after) else min(len(before), len(after))


def _token(output: Sequence[int], position: int) -> str:
    return f"token {output[position]}" if position < len(output) else "the end"


def rounds_complete(rounds: Sequence[dict[str, Any]], requested: int, output_len: int) -> Judgement:
    """Every request of every round completed, with the right number of tokens.

    A round: {"completed", "output_lens": [int], "errors": [str], ...} as SGLang's client reports it.
    """
    if not rounds:
        return Judgement("inconclusive", "the benchmark gave no round")
    for number, r in enumerate(rounds, 1):
        completed, lens = int(r.get("completed", 0)), list(r.get("output_lens", []))
        if completed != requested or len(lens) != requested:
            error = next((e for e in r.get("errors", []) if e), "")
            text = f"round {number}: {completed} of {requested} requests completed"
            return Judgement("fail", text + (f"; first error: {_short(error)}" if error else ""))
        wrong = [n for n in lens if n != output_len]
        if wrong:
            return Judgement(
                "fail",
                f"round {number}: {len(wrong)} of {requested} answers have a wrong length, "
                f"as {wrong[0]} instead of {output_len} tokens",
            )
    many = f" in each of {len(rounds)} rounds" if len(rounds) > 1 else ""
    return Judgement("pass", f"{requested} of {requested} requests completed{many}")


def _short(text: str) -> str:
    lines = [line for line in str(text).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:200]


def steps_per_token(
    verify_steps: Sequence[int | None], completion: Sequence[int], speculative: bool
) -> float | None:
    """Verify steps per generated token over a prompt set; 1.0 without speculation, None when unknown."""
    if not speculative:
        return 1.0
    total = sum(completion)
    if not total or any(s is None for s in verify_steps):
        return None
    return sum(s for s in verify_steps if s is not None) / total


def steps_ratio(before: float | None, after: float | None, max_ratio: float) -> Judgement:
    """Verify steps per token now against before; lower is better."""
    if before is None or after is None:
        which = "before" if before is None else "now"
        return Judgement(
            "inconclusive", f"verify steps per token {which} are unknown (no spec_verify_ct in the answers)"
        )
    text = f"verify steps per token {before:.4f} before, {after:.4f} now"
    # A count of a few thousand divided by another: equal means equal, but for the division's rounding.
    if after <= before * max_ratio + 1e-9:
        return Judgement("pass", text)
    return Judgement("fail", f"{text}: more than {max_ratio:g} times as many")


def speed_ratio(before: float, after: float, min_ratio: float) -> Judgement:
    """Output tokens per second now against before."""
    if before <= 0 or after <= 0:
        return Judgement("inconclusive", f"speed is unknown ({before:.1f} tok/s before, {after:.1f} now)")
    ratio = after / before
    text = f"{before:.1f} tok/s before, {after:.1f} now (ratio {ratio:.2f})"
    if ratio >= min_ratio:
        return Judgement("pass", text)
    return Judgement("fail", f"{text}: below {min_ratio:g}")


def median(values: Sequence[float]) -> float:
    """The middle value; 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
