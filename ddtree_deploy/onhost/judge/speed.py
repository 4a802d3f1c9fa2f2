"""The speed gate: rounds before and after -> pass, fail or inconclusive. Pure, standard library only.

One primary figure, chosen beforehand: output throughput at the operating concurrency. The rounds come in
as they were measured; nothing is taken out but the warm-up and rounds that are void.

    pass          the whole interval of the ratio lies at or above min_ratio
    fail          the whole interval lies below it, or requests were lost
    inconclusive  it holds min_ratio; or the host itself changed; or too little is known

The interval: Hodges-Lehmann shift of the logs, exact Mann-Whitney, widened by the restart-to-restart
spread. It is looked at once, after all rounds: looking after 3, 5 and 8 doubles the false failures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stats import HostChange, Interval, RestartSpread, host_change, shift_interval, summary
from .verdict import Verdict

# Without a calibration a pass is not to be had, but a server half as fast must still fail. This stands for
# the restart spread then: that of the most disturbed host measured so far (two shared cores: 10.7 %).
WORST_RESTART_SD = 0.11
MIN_ROUNDS = 5
MIN_RATIO = 0.95


@dataclass(frozen=True)
class Round:
    """One round of the benchmark client. Seconds, output tokens; warm-up rounds are never judged."""

    requested: int
    completed: int
    expected_tokens: int  # requested * output length; 0 where the length is not fixed
    output_tokens: int
    seconds: float
    warmup: bool = False

    @classmethod
    def of_client(
        cls, raw: dict[str, Any], requested: int, output_len: int, *, warmup: bool = False
    ) -> Round:
        """From one result of SGLang's client. It counts successes only; `requested` is what was asked."""
        tokens = raw.get("total_output_tokens")
        return cls(
            requested=requested,
            completed=int(raw.get("completed") or 0),
            expected_tokens=requested * output_len,
            output_tokens=int(sum(raw.get("output_lens") or []) if tokens is None else tokens),
            seconds=float(raw.get("duration") or 0.0),
            warmup=warmup,
        )

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def void(self) -> str:
        """Why the round says nothing about speed; empty when it counts."""
        if self.completed != self.requested:
            return f"{self.completed} of {self.requested} requests completed"
        if self.expected_tokens and self.output_tokens != self.expected_tokens:
            return f"{self.output_tokens} of {self.expected_tokens} output tokens"
        if not self.throughput > 0:
            return "nothing was generated"
        return ""


@dataclass(frozen=True)
class Measurements:
    """All that the gate judges. `loop_*`: seconds of the fixed calibration loop, run between the rounds.

    restart: measured by `calibrate` on this host; None: unknown. assumed: written in the playbook by a
    person.
    """

    before: Sequence[Round]
    after: Sequence[Round]
    min_ratio: float
    restart: RestartSpread | None = None
    assumed: bool = False
    loop_before: Sequence[float] = field(default_factory=tuple)
    loop_after: Sequence[float] = field(default_factory=tuple)
    loop_limit: float = 0.10
    confidence: float = 0.95
    wanted_rounds: int = 8


def min_ratio_of(options: Mapping[str, Any]) -> float | None:
    """What a benchmark step with these options judges by; None: nobody judges the speed."""
    ratio = options.get("min_ratio", MIN_RATIO)
    return None if ratio is None else float(ratio)


def judge(m: Measurements) -> Verdict:
    """The verdict on the release's speed. Raises ValueError for a min_ratio that is not positive."""
    if not (m.min_ratio > 0 and math.isfinite(m.min_ratio)):
        raise ValueError(f"min_ratio must be positive, got {m.min_ratio}")
    figures = _figures(m)
    lost = _lost(m)
    if lost is not None:
        return Verdict(*lost, figures)
    before = [r.throughput for r in _valid(m.before)]
    after = [r.throughput for r in _valid(m.after)]
    few = _too_few(m, len(before), len(after))
    if few:
        return Verdict("inconclusive", few, figures)
    raw = shift_interval(before, after, m.confidence)
    spread = m.restart or RestartSpread(WORST_RESTART_SD)
    extra = spread.half_width(raw.half_width, len(before) + len(after), m.confidence)
    interval = raw.widened(extra)
    change = host_change(m.loop_before, m.loop_after, m.loop_limit)
    figures |= _interval_figures(raw, interval)
    figures["host_change"] = _change_figures(change)
    floor = math.log(m.min_ratio)
    verdict = _verdict_of(interval, floor)
    text = _ratio_text(interval, m)
    changed = _host_changed(verdict, interval, change, floor)
    if changed:
        figures["host_changed"] = True
        return Verdict("inconclusive", f"{changed}; {text}", figures)
    if verdict == "pass" and m.restart is None:
        return Verdict("inconclusive", _uncalibrated(raw, text), figures)
    if verdict == "inconclusive":
        return Verdict(verdict, _undecided(interval, m, text), figures)
    if change is None:
        figures["notes"].append("no calibration loop was run: a change of the host would not be seen")
    return Verdict(verdict, text, figures)


def _valid(rounds: Sequence[Round]) -> list[Round]:
    return [r for r in rounds if not r.warmup and not r.void]


def _lost(m: Measurements) -> tuple[str, str] | None:
    """A round after with lost requests or tokens fails at any speed, unless it was so before."""
    bad = [f"round {i} of {len(m.after)} after: {r.void}" for i, r in enumerate(m.after, 1) if r.void]
    if not bad:
        return None
    which = bad[0] + (f" ({len(bad)} rounds void)" if len(bad) > 1 else "")
    was = next((b.void for b in m.before if b.void), "")
    if was:
        return "inconclusive", f"{which}, but the old service did the same ({was}): look at the host"
    return "fail", which


def _too_few(m: Measurements, before: int, after: int) -> str:
    if min(before, after) >= MIN_ROUNDS:
        return ""
    void = sum(1 for r in m.before if r.void and not r.warmup)
    why = f"; {void} before are void" if void else ""
    return f"{before} rounds before and {after} after are too few to judge, {MIN_ROUNDS} are needed{why}"


def _verdict_of(interval: Interval, floor: float) -> str:
    if interval.low >= floor:
        return "pass"
    return "fail" if interval.high < floor else "inconclusive"


def _host_changed(verdict: str, interval: Interval, change: HostChange | None, floor: float) -> str:
    """Why the host, and not the release, may be what was measured; empty when it was steady enough.

    The loop is an alarm, never a divisor: dividing by it makes every interval wider and a changed host look
    fine. Beyond its limit it voids the comparison. Below it, it can still take a verdict back that would not
    stand with the loop's own shift, and its uncertainty, taken off. A failure is taken back readily (the host
    goes back to the old service either way), a pass only where the loop's own interval leaves out zero.
    """
    if change is None:
        return ""
    moved = (
        f"the calibration loop ran {abs(change.percent):.1f} % {'slower' if change.shift < 0 else 'faster'}"
    )
    if change.alarm:
        return f"host changed: {moved} after than before"
    loop = change.interval
    if verdict == "inconclusive" or loop is None:
        return ""
    if verdict == "pass" and loop.low <= 0 <= loop.high:
        return ""
    if _verdict_of(interval.minus(loop), floor) == verdict:
        return ""
    known = loop.low > 0 or loop.high < 0
    sure = f" [{_percent(loop.low)}, {_percent(loop.high)}]"
    return f"host {'changed' if known else 'not steady enough'}: {moved}{sure}, which may be all of it"


def _percent(shift: float) -> str:
    return f"{(math.exp(shift) - 1) * 100:+.1f} %"


def _ratio_text(interval: Interval, m: Measurements) -> str:
    low, high = interval.ratios
    return f"speed ratio {math.exp(interval.shift):.3f} [{low:.3f}, {high:.3f}], min_ratio {m.min_ratio:g}"


def _uncalibrated(raw: Interval, text: str) -> str:
    low, high = raw.ratios
    return (
        f"{text}; not calibrated: the restart spread of this host is unknown, so the interval is a guess "
        f"(rounds alone: [{low:.3f}, {high:.3f}])"
    )


def _undecided(interval: Interval, m: Measurements, text: str) -> str:
    if m.restart is None:
        return f"{text}; not calibrated: the restart spread of this host is unknown"
    if interval.half_width >= abs(math.log(m.min_ratio)):
        return f"{text}; this host is too noisy for it (half-width {interval.half_width:.1%})"
    return f"{text}; the interval holds min_ratio"


def _figures(m: Measurements) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for name, rounds in (("before", m.before), ("after", m.after)):
        values = [r.throughput for r in _valid(rounds)]
        sides[name] = {
            "throughput": [round(r.throughput, 3) for r in rounds],
            "seconds": [round(r.seconds, 3) for r in rounds],
            "used": [not r.warmup and not r.void for r in rounds],
            "void": [{"round": i, "why": r.void} for i, r in enumerate(rounds, 1) if r.void],
            "summary": summary(values) if values else None,
        }
    restart = None
    if m.restart is not None:
        source = "assumed in the playbook" if m.assumed else f"calibrated, {m.restart.restarts} restarts"
        restart = {"sd": m.restart.sd, "restarts": m.restart.restarts, "source": source}
    notes = []
    for name in ("before", "after"):
        used = sum(sides[name]["used"])
        if used < m.wanted_rounds:
            notes.append(f"{used} rounds {name} could be used, {m.wanted_rounds} were wanted")
    return {
        "min_ratio": m.min_ratio,
        "confidence": m.confidence,
        "rounds": sides,
        "restart": restart,
        "host_changed": False,
        "notes": notes,
    }


def _interval_figures(raw: Interval, interval: Interval) -> dict[str, Any]:
    return {
        "ratio": math.exp(interval.shift),
        "interval": interval.ratios,
        "half_width": interval.half_width,
        "interval_rounds_only": raw.ratios,
        "coverage": raw.coverage,
    }


def _change_figures(change: HostChange | None) -> dict[str, Any] | None:
    if change is None:
        return None
    interval = change.interval.ratios if change.interval else None
    return {"percent": change.percent, "interval": interval, "alarm": change.alarm}
