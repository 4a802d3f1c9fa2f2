"""Do two servers say the same, token for token, and does the tree accept as much as it should? Pure.

A speculative server may differ from the target model only where the target itself cannot decide: its best two
tokens are closer than `epsilon` (natural log of probability). Those are *ties*, counted; anything else is
a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .verdict import Verdict

# The smallest epsilon in use: float32 sums of a few thousand terms in another order differ by about this
# much.
EPSILON_FLOOR = 1e-4
# Natural log: a token that was 1.65 times as likely. A server that parts from itself there is not tied, it is
# broken.
SELF_GAP_LIMIT = 0.5
# Ties are rare. Where no gap is known, more divergences than this share of the prompts are no ties.
UNKNOWN_SHARE = 0.25


@dataclass(frozen=True)
class Continuation:
    """One greedy answer. tokens: ids. logprobs: of each token. top2: the best two (id, log-prob)."""

    prompt: str  # name or number of the prompt, for people
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    top2: list[list[tuple[int, float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Divergence:
    """The first generated token (from 0) where two answers part. gap: reference's top-1 - top-2."""

    prompt: str
    position: int
    expected: int | None  # None: the reference had ended
    got: int | None  # None: the candidate had ended
    expected_logprob: float | None
    got_logprob: float | None
    gap: float | None
    tie: bool

    def __str__(self) -> str:
        def token(value: int | None, logprob: float | None) -> str:
            if value is None:
                return "the end"
            return f"token {value}" + (f" (log-prob {logprob:.4f})" if logprob is not None else "")

        gap = "gap unknown" if self.gap is None else f"gap {self.gap:.2g}"
        return (
            f"prompt {self.prompt}, position {self.position}: expected "
            f"{token(self.expected, self.expected_logprob)}, got {token(self.got, self.got_logprob)}; {gap}"
        )


def first_divergence(reference: Continuation, candidate: Continuation, epsilon: float) -> Divergence | None:
    """Where `candidate` leaves `reference`; None when both are equal to the end.

    A tie needs the candidate's token to be one of the reference's best two there, less than `epsilon` apart.
    """
    a, b = reference.tokens, candidate.tokens
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if at == len(a) == len(b):
        return None
    expected = a[at] if at < len(a) else None
    got = b[at] if at < len(b) else None
    best = reference.top2[at] if at < len(reference.top2) else []
    gap = best[0][1] - best[1][1] if len(best) >= 2 else None
    near = gap is not None and gap < epsilon and {expected, got} <= {token for token, _ in best[:2]}
    return Divergence(
        reference.prompt,
        at,
        expected,
        got,
        reference.logprobs[at] if at < len(reference.logprobs) else None,
        candidate.logprobs[at] if at < len(candidate.logprobs) else None,
        gap,
        near,
    )


def judge_tokens(
    reference: Sequence[Continuation],
    candidate: Sequence[Continuation],
    *,
    epsilon: float,
    max_tie_share: float = 0.0,
) -> Verdict:
    """Is every answer the reference's, up to ties? `max_tie_share`: of the prompts, 0 to 1.

    A divergence whose gap is unknown (no log-probs kept) is inconclusive, unless more than UNKNOWN_SHARE of
    the prompts (and at least two) part: then it is a failure. A missing answer is a failure.
    """
    answers = {c.prompt: c for c in candidate}
    by_prompt = {r.prompt: r for r in reference}
    found = [
        (r.prompt, first_divergence(r, answers[r.prompt], epsilon)) for r in reference if r.prompt in answers
    ]
    divergences = [d for _, d in found if d is not None]
    ties = [d for d in divergences if d.tie]
    unknown = [d for d in divergences if d.gap is None and None not in (d.expected, d.got)]
    wrong = [d for d in divergences if not d.tie and d not in unknown]
    missing = [r.prompt for r in reference if r.prompt not in answers]
    figures = {
        "prompts": len(reference),
        "tokens": sum(len(r.tokens) for r in reference),
        "equal": len(found) - len(divergences),
        "ties": len(ties),
        "epsilon": epsilon,
        "max_tie_share": max_tie_share,
        "divergences": [_shown(d, by_prompt[d.prompt], answers[d.prompt]) for d in divergences],
    }
    n = len(reference)
    if n == 0:
        return Verdict("inconclusive", "there is no reference to compare with", figures)
    if missing:
        return Verdict("fail", f"no answer to prompt {missing[0]} ({len(missing)} of {n} missing)", figures)
    if wrong:
        return Verdict("fail", f"{wrong[0]} ({len(wrong)} of {n} prompts differ)", figures)
    if len(unknown) > max(1.0, UNKNOWN_SHARE * n):
        text = f"{unknown[0]} ({len(unknown)} of {n} prompts differ: too many to be ties)"
        return Verdict("fail", text, figures)
    if unknown:
        return Verdict("inconclusive", f"{unknown[0]}: a fault or a tie, cannot tell", figures)
    if len(ties) > max_tie_share * n:
        text = f"{len(ties)} of {n} prompts part at a tie, allowed are {max_tie_share:.0%}; first: {ties[0]}"
        return Verdict("fail", text, figures)
    tied = f", {len(ties)} up to a tie (log-prob gap under {epsilon:.1g})" if ties else ""
    return Verdict("pass", f"{n} answers equal token for token{tied}", figures)


def _shown(d: Divergence, reference: Continuation, candidate: Continuation) -> dict[str, Any]:
    """A divergence with the tokens around it, for the report."""
    start = max(0, d.position - 4)
    window = slice(start, d.position + 8)
    around = {"from": start, "expected": reference.tokens[window], "got": candidate.tokens[window]}
    return {**asdict(d), "around": around}


def self_agreement(runs: Sequence[Sequence[Continuation]]) -> tuple[float, float]:
    """(epsilon, tie share) of a reference against itself: runs of the same prompts, against the first.

    epsilon is twice the widest gap at which it parted from itself, never under EPSILON_FLOOR; the share is
    the largest of one run. Raises ValueError with fewer than two runs, where a gap was not kept, or where one
    is wider than SELF_GAP_LIMIT.
    """
    if len(runs) < 2:
        raise ValueError("one run says nothing about agreement with itself; at least 2")
    first = runs[0]
    gaps, share = [0.0], 0.0
    for run in runs[1:]:
        answers = {c.prompt: c for c in run}
        parted = [
            d
            for r in first
            if r.prompt in answers
            for d in [first_divergence(r, answers[r.prompt], EPSILON_FLOOR)]
            if d is not None
        ]
        for d in parted:
            if d.gap is None:
                raise ValueError(f"{d}: no log-probs were kept, so no epsilon can be found")
            if d.gap > SELF_GAP_LIMIT:
                raise ValueError(f"{d}: no tie")
            gaps.append(d.gap)
        share = max(share, len(parted) / len(first)) if first else 0.0
    return max(EPSILON_FLOOR, 2 * max(gaps)), share


def identity_differences(recorded: dict[str, str], found: dict[str, str]) -> list[str]:
    """Why a golden file is no reference here: `model: recorded 'a', here 'b'`; empty when it is."""
    return [
        f"{name}: recorded {recorded.get(name, '')!r}, here {found.get(name, '')!r}"
        for name in sorted(recorded.keys() | found.keys())
        if recorded.get(name) != found.get(name)
    ]


def judge_acceptance(
    value: float, expected: float, tolerance: float, *, what: str, against: str, higher_is_better: bool = True
) -> Verdict:
    """A figure against an expected one: fail when worse by more than `tolerance` (relative, 0.02 = 2 %).

    what: `accept length` or `verify steps per token` (then `higher_is_better` is False). against: `the
    chain`, or a baseline's name. Better never fails.
    """
    figures = {"value": value, "expected": expected, "tolerance": tolerance, "what": what, "against": against}
    if not (value > 0 and expected > 0):
        return Verdict("inconclusive", f"{what}: {value:g} against {expected:g} of {against}", figures)
    change = value / expected - 1
    worse = -change if higher_is_better else change
    text = f"{what} {value:.3f}, {against} {expected:.3f} ({change:+.1%}, tolerance {tolerance:.1%})"
    return Verdict("fail" if worse > tolerance else "pass", text, figures)
