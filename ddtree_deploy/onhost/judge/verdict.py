"""Measurements -> (verdict, reason). Pure; the verdict is pass, fail or inconclusive, which never passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """What a gate, a step or a run comes to, and why; the one form of it on the host.

    verdict: pass | fail | inconclusive; of a step also skipped | interrupted, of a run died. figures: plain
    JSON data for the journal and the report. exit_code: 0 is the verdict's own.
    """

    verdict: str
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    step: str = ""
    exit_code: int = 0


def worst_of(judged: Sequence[Verdict]) -> Verdict:
    """One verdict of several: fail before inconclusive before pass, with the reasons of that verdict.

    figures: {"judged": [{"verdict", "reason", **figures}, ...]}. Nothing judged is inconclusive.
    """
    figures = {"judged": [{"verdict": j.verdict, "reason": j.reason, **j.figures} for j in judged]}
    for verdict in ("fail", "inconclusive", "pass"):
        reasons = [j.reason for j in judged if j.verdict == verdict]
        if reasons:
            return Verdict(verdict, "; ".join(reasons), figures)
    return Verdict("inconclusive", "nothing was measured", figures)


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


def health(good: int, need: int, requests: int, faults: Sequence[str]) -> Verdict:
    """N of M prompts of our own were answered with tokens."""
    text = f"{good} of {requests} prompts were answered with tokens"
    if good >= need:
        return Verdict("pass", text)
    return Verdict("fail", f"{text}, {need} are needed; {faults[0] if faults else 'none was asked'}")


def rounds_complete(
    rounds: Sequence[dict[str, Any]], num_prompts: int, output_len: int, repeats: int = 1
) -> Verdict:
    """Every request of every round completed, with the right number of tokens.

    A round: {"completed", "output_lens": [int], "errors": [str], ...} as SGLang's client reports it; a warm-
    up round runs the prompts once, every other `repeats` times.
    """
    if not rounds:
        return Verdict("inconclusive", "the benchmark gave no round")
    for number, r in enumerate(rounds, 1):
        requested = num_prompts * (1 if r.get("warmup") else repeats)
        completed, lens = int(r.get("completed", 0)), list(r.get("output_lens", []))
        if completed != requested or len(lens) != requested:
            error = next((e for e in r.get("errors", []) if e), "")
            text = f"round {number}: {completed} of {requested} requests completed"
            return Verdict("fail", text + (f"; first error: {_short(error)}" if error else ""))
        wrong = [n for n in lens if n != output_len]
        if wrong:
            return Verdict(
                "fail",
                f"round {number}: {len(wrong)} of {requested} answers have a wrong length, "
                f"as {wrong[0]} instead of {output_len} tokens",
            )
    many = f" in each of {len(rounds)} rounds" if len(rounds) > 1 else ""
    return Verdict("pass", f"{requested} of {requested} requests completed{many}")


def _short(text: str) -> str:
    lines = [line for line in str(text).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:200]
