"""Blocks of rounds at several tree budgets -> which budget is best at which concurrency. Pure.

A block is what one restart with one budget gave: {"pass", "budget" (0: the chain), "steps_per_token",
"accept_length", "loop": seconds of the calibration loop, "by_concurrency": {"4": {"rounds": [tokens/s],
"ttft_ms", "tpot_ms"}}}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from .speed import WORST_RESTART_SD
from .stats import Interval, RestartSpread, TooFewRounds, logs, shift_interval

CHAIN = 0
LOOP_LIMIT = 0.10  # beyond it the host, and not the budget, is what was measured


def table(blocks: Sequence[dict[str, Any]], known: RestartSpread | None = None) -> dict[str, Any]:
    """{"rows", "best", "schedule", "restart"}.

    rows: per concurrency and budget {concurrency, budget, rounds, output_tokens_per_s, ratio, interval,
    steps_per_token, accept_length, ttft_ms, tpot_ms, host_percent, host_moved}; ratio and interval against
    the chain, both None where there are too few rounds, or the host itself ran at another speed then
    (host_moved; host_percent: by how much faster). best: per concurrency {concurrency, budget, ratio,
    interval, equals}: the budget with the highest ratio, the chain where none is faster for sure; `equals`
    are those that it cannot be told from. known: this host's calibration, where there is one.
    """
    passes = len({b["pass"] for b in blocks})
    spread, source = restart_spread(blocks, known)
    shifts = host_shifts(blocks)
    moved = {n for n, shift in shifts.items() if abs(shift) > LOOP_LIMIT}
    rows: list[dict[str, Any]] = []
    best: list[dict[str, Any]] = []
    for c in sorted({int(c) for b in blocks for c in b["by_concurrency"]}):
        arms = _arms(blocks, c)
        intervals = {
            n: None if n in moved else _interval(arms[CHAIN], arm, spread, passes)
            for n, arm in arms.items()
            if n != CHAIN
        }
        rows += [
            {
                **_row(blocks, c, n, arm, intervals.get(n)),
                "host_percent": _percent(shifts.get(n)),
                "host_moved": n in moved,
            }
            for n, arm in sorted(arms.items())
        ]
        best.append(_best(c, intervals))
    return {
        "rows": rows,
        "best": best,
        "schedule": schedule(best),
        "restart": {"sd": spread.sd, "source": source},
        "passes": passes,
    }


def schedule(best: Sequence[dict[str, Any]]) -> str:
    """`1:16,4:8,16:0`: from this batch size on this budget (0: the chain), by the best of each concurrency.

    The first entry holds from batch size 1 on, whatever the lowest measured concurrency was.
    """
    parts: list[tuple[int, int]] = []
    for row in best:
        if not parts or parts[-1][1] != row["budget"]:
            parts.append((row["concurrency"] if parts else 1, row["budget"]))
    return ",".join(f"{size}:{budget}" for size, budget in parts)


def restart_spread(
    blocks: Sequence[dict[str, Any]], known: RestartSpread | None
) -> tuple[RestartSpread, str]:
    """The spread to reckon with: the calibration's; else between the passes of each budget, pooled; else the
    worst host measured so far."""
    if known is not None:
        return known, f"calibrated, {known.restarts} restarts"
    squares, freedom = 0.0, 0
    keys = {(b["budget"], c) for b in blocks for c in b["by_concurrency"]}
    for budget, c in keys:
        middles = [
            math.log(median(b["by_concurrency"][c]["rounds"]))
            for b in blocks
            if b["budget"] == budget and c in b["by_concurrency"]
        ]
        if len(middles) > 1:
            mean = fmean(middles)
            squares += sum((m - mean) ** 2 for m in middles)
            freedom += len(middles) - 1
    if freedom < 2:
        return RestartSpread(WORST_RESTART_SD), "not known: the worst host measured so far stands for it"
    source = f"from the passes of this sweep, {freedom} degrees of freedom"
    return RestartSpread(math.sqrt(squares / freedom), freedom + 1), source


def host_shifts(blocks: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Budget -> log of the host's own speed then, against that during the chain's rounds. By the calibration
    loop; without one, for the chain or the budget, nothing is known."""
    loops: dict[int, list[float]] = {}
    for b in blocks:
        if b.get("loop"):
            loops.setdefault(int(b["budget"]), []).append(math.log(b["loop"]))
    if CHAIN not in loops:
        return {}
    return {n: fmean(loops[CHAIN]) - fmean(found) for n, found in loops.items() if n != CHAIN}


def _percent(shift: float | None) -> float | None:
    return None if shift is None else round((math.exp(shift) - 1) * 100, 1)


def _arms(blocks: Sequence[dict[str, Any]], concurrency: int) -> dict[int, list[float]]:
    """Budget -> all its rounds at this concurrency."""
    arms: dict[int, list[float]] = {}
    for b in blocks:
        found = b["by_concurrency"].get(str(concurrency))
        if found:
            arms.setdefault(int(b["budget"]), []).extend(found["rounds"])
    if CHAIN not in arms:
        raise ValueError(f"no round of the chain at concurrency {concurrency}: nothing to compare with")
    return arms


def _interval(chain: list[float], arm: list[float], spread: RestartSpread, passes: int) -> Interval | None:
    """The shift against the chain, widened by restarts (`passes` are averaged); None: too few."""
    try:
        raw = shift_interval(chain, arm)
    except TooFewRounds:
        return None
    averaged = RestartSpread(spread.sd / math.sqrt(passes), spread.restarts)
    return raw.widened(averaged.half_width(raw.half_width, len(chain) + len(arm)))


def _row(
    blocks: Sequence[dict[str, Any]], c: int, budget: int, rounds: list[float], interval: Interval | None
) -> dict[str, Any]:
    own = [b for b in blocks if b["budget"] == budget and str(c) in b["by_concurrency"]]
    logs(rounds)  # a round without throughput is an error, not a row

    def mean(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return fmean(known) if known else None

    return {
        "concurrency": c,
        "budget": budget,
        "rounds": len(rounds),
        "output_tokens_per_s": median(rounds),
        "ratio": None if interval is None else math.exp(interval.shift),
        "interval": None if interval is None else interval.ratios,
        "steps_per_token": mean([b["steps_per_token"] for b in own]),
        "accept_length": mean([b["accept_length"] for b in own]),
        "ttft_ms": mean([b["by_concurrency"][str(c)]["ttft_ms"] for b in own]),
        "tpot_ms": mean([b["by_concurrency"][str(c)]["tpot_ms"] for b in own]),
    }


def _best(concurrency: int, intervals: dict[int, Interval | None]) -> dict[str, Any]:
    sure = {n: i for n, i in intervals.items() if i is not None and i.low > 0}
    if not sure:
        maybe = sorted(n for n, i in intervals.items() if i is None or i.high > 0)
        return {"concurrency": concurrency, "budget": CHAIN, "ratio": 1.0, "interval": None, "equals": maybe}
    n, i = max(sure.items(), key=lambda item: item[1].shift)
    near = sorted(m for m, j in intervals.items() if m != n and j is not None and j.high >= i.low)
    return {
        "concurrency": concurrency,
        "budget": n,
        "ratio": math.exp(i.shift),
        "interval": i.ratios,
        "equals": near,
    }
