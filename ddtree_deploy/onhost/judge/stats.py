"""What a speed gate may conclude from a few noisy rounds. Pure, standard library only.

Rounds are compared on the log scale: a *shift* of s means a ratio of exp(s); -0.05 is about 5 % slower. All
spreads are standard deviations of log values, so 0.08 is "8 %".

Sources: Hodges and Lehmann, "Estimates of location based on rank tests", 1963; Mann and Whitney, "On a
test of whether one of two random variables is stochastically larger than the other", 1947 (the recurrence
used in `_counts`); Fisher and Cornish, "The percentile points of distributions having known cumulants",
1960 (`t_factor`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median

CONFIDENCE = 0.95
MIN_RESTARTS = 6  # fewer say too little about how much restarts differ
# Between two restarts of an unchanged service there are two draws of the restart's own speed.
_PAIR = math.sqrt(2.0)
# Mean half-width of the exact Mann-Whitney interval over that of the normal one (1.96 sd sqrt(1/m + 1/n)),
# for normal noise; by simulation, 20,000 draws (from 16 rounds on 5,000). Both sides equal; the nearest
# size not larger is used.
_WIDTH = {4: 1.49, 5: 1.33, 6: 1.21, 7: 1.20, 8: 1.11, 10: 1.12, 12: 1.10, 16: 1.08, 24: 1.05}


class TooFewRounds(ValueError):
    """No interval of the wanted confidence exists for so few rounds."""


@dataclass(frozen=True)
class Interval:
    """A shift on the log scale with its confidence interval. `coverage`: of the exact interval."""

    shift: float
    low: float
    high: float
    coverage: float

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def ratios(self) -> list[float]:
        """Both ends as ratios."""
        return [math.exp(self.low), math.exp(self.high)]

    def minus(self, other: Interval) -> Interval:
        """The shift without `other`, measured independently; the arms add in quadrature."""
        shift = self.shift - other.shift
        down = math.hypot(self.shift - self.low, other.high - other.shift)
        up = math.hypot(self.high - self.shift, other.shift - other.low)
        return Interval(shift, shift - down, shift + up, min(self.coverage, other.coverage))

    def widened(self, half_width: float) -> Interval:
        """Both arms made longer by an independent error of this half-width: sqrt(arm^2 + half_width^2)."""
        return Interval(
            self.shift,
            self.shift - math.hypot(self.shift - self.low, half_width),
            self.shift + math.hypot(self.high - self.shift, half_width),
            self.coverage,
        )


def logs(values: Sequence[float]) -> list[float]:
    """Natural logs of throughputs or times. Raises ValueError on anything not positive and finite."""
    bad = [v for v in values if not (v > 0 and math.isfinite(v))]
    if bad:
        raise ValueError(f"{bad[0]} has no logarithm; rounds must be positive and finite")
    return [math.log(v) for v in values]


def _sd(values: Sequence[float]) -> float:
    """Sample standard deviation; statistics.stdev goes through fractions, 20 times slower."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


@lru_cache(maxsize=128)
def _counts(m: int, n: int) -> tuple[int, ...]:
    """How many of the C(m+n, m) orders give U = 0, 1, ..., m*n, without ties."""
    if m == 0 or n == 0:
        return (1,)
    out = [0] * (m * n + 1)
    for u, c in enumerate(_counts(m - 1, n)):  # the largest value belongs to the first sample: it beats all n
        out[u + n] += c
    for u, c in enumerate(_counts(m, n - 1)):
        out[u] += c
    return tuple(out)


@lru_cache(maxsize=128)
def interval_rank(m: int, n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """Rank k (1-based) of the pairwise difference that bounds the interval, and its exact coverage.

    The interval runs from the k-th smallest to the k-th largest of the m*n differences. Raises
    TooFewRounds when even k = 1 covers less than `confidence` (3 against 3, for 95 %).
    """
    total = math.comb(m + n, m)
    tail, k = 0, 0
    for c in _counts(m, n):
        if 2 * (tail + c) > (1 - confidence) * total:
            break
        tail += c
        k += 1
    if k == 0:
        raise TooFewRounds(f"{m} and {n} rounds are too few for a {confidence:.0%} interval")
    return k, 1 - 2 * tail / total


def hodges_lehmann(before: Sequence[float], after: Sequence[float]) -> float:
    """Shift of log `after` against log `before`: the median of pairwise differences. Values > 0."""
    x = logs(before)
    return median(a - b for a in logs(after) for b in x)


def shift_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """Hodges-Lehmann shift of the logs with the exact, distribution-free Mann-Whitney interval.

    Takes raw throughputs (> 0, any unit). Raises TooFewRounds, ValueError.
    """
    x = logs(before)
    differences = sorted(a - b for a in logs(after) for b in x)
    k, coverage = interval_rank(len(x), len(after), confidence)
    return Interval(median(differences), differences[k - 1], differences[-k], coverage)


@dataclass(frozen=True)
class RestartSpread:
    """How much two starts of an unchanged service differ: sd of log throughput between restarts.

    restarts: how many it was measured from; 0 for a figure that a person gave (taken as exact).
    """

    sd: float
    restarts: int = 0

    def half_width(self, rounds_half_width: float, rounds: int, confidence: float = CONFIDENCE) -> float:
        """Half-width that it adds to a comparison across one restart: factor * sqrt(2) * sd.

        The factor is 1.96 for a given sd. For an estimated one it is Student's t (up to 2.57 for six
        restarts), with Satterthwaite's degrees of freedom of the whole, so that it only bites where
        restarts dominate: a plain 1.96 there fails twice as many good releases (benchmarks/gate_study.py).
        rounds: before and after together.
        """
        z = t_factor(0, confidence)
        if not self.restarts or self.sd == 0:
            return z * _PAIR * self.sd
        of_rounds = (rounds_half_width / z) ** 2
        of_restarts = 2 * self.sd**2
        df = (of_rounds + of_restarts) ** 2 / (
            of_rounds**2 / max(1, rounds - 2) + of_restarts**2 / (self.restarts - 1)
        )
        return t_factor(df, confidence) * _PAIR * self.sd


def restart_spread(restarts: Sequence[Sequence[float]]) -> RestartSpread:
    """Measured from rounds of several restarts: the sd of the restarts' medians (logs).

    It holds the rounds' own share too (sd / sqrt(rounds)). That is left in: taking it off makes the figure
    zero on a noisy host every other time, and a gate that trusts the zero fails good releases. Raises
    ValueError: under 3.
    """
    if len(restarts) < 3:
        raise ValueError(f"{len(restarts)} restarts say nothing about their spread; at least 3, better 6")
    return RestartSpread(_sd([median(logs(r)) for r in restarts]), len(restarts))


def t_factor(df: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t by the Cornish-Fisher expansion; df 0 means infinitely many.

    Within 0.1 % for df >= 5 and 4 % for df >= 2, at 95 %.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    if df <= 0:
        return z
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )


@dataclass(frozen=True)
class Resolution:
    """Whether a ratio can be told from `expected_ratio` on this host, before anything is stopped.

    half_width: of the interval to come, log scale. smallest_ratio: the min_ratio just resolvable. chance:
    that a release which is exactly as fast as expected passes.
    """

    resolvable: bool
    half_width: float
    round_sd: float
    smallest_ratio: float
    chance: float
    text: str


def expected_half_width(round_sd: float, m: int, n: int) -> float:
    """Mean half-width of the exact 95 % interval for log noise `round_sd`, m rounds before, n after."""
    interval_rank(m, n)
    size = max((s for s in _WIDTH if s <= min(m, n)), default=min(_WIDTH))
    return _WIDTH[size] * t_factor(0) * round_sd * math.sqrt(1 / m + 1 / n)


def resolution(
    before: Sequence[float],
    min_ratio: float,
    restart: RestartSpread | None,
    *,
    rounds_after: int = 0,
    expected_ratio: float = 1.0,
) -> Resolution:
    """Can `min_ratio` be resolved, judging by the rounds before (raw throughputs) and the restart spread?

    rounds_after: how many will follow (0: as many as before). expected_ratio: what the release is expected
    to give; 1 for "as fast as now". Raises TooFewRounds, ValueError.
    """
    n = rounds_after or len(before)
    sd = _sd(logs(before))
    h = expected_half_width(sd, len(before), n)
    if restart is not None:
        h = math.hypot(h, restart.half_width(h, len(before) + n))
    margin = math.log(expected_ratio) - math.log(min_ratio)
    # The estimate scatters by the rounds and by the two restarts; it passes while its lower end stays above.
    scatter = math.hypot(sd * math.sqrt(1 / len(before) + 1 / n), _PAIR * restart.sd if restart else 0.0)
    chance = NormalDist().cdf((margin - h) / scatter) if scatter > 0 else float(margin > h)
    smallest = expected_ratio * math.exp(-h)
    ok = h < margin
    text = (
        f"min_ratio {min_ratio:g} {'can' if ok else 'cannot'} be resolved on this host: "
        f"{len(before)} + {n} rounds that spread by {sd:.1%}, {_restart_text(restart)}, "
        f"decide down to a ratio of {smallest:.2f}"
    )
    if ok:
        text += f" (a release as fast as expected passes {chance:.0%} of the time)"
    return Resolution(ok, h, sd, smallest, chance, text)


def _restart_text(restart: RestartSpread | None) -> str:
    if restart is None:
        return "restart spread unknown"
    source = f"measured over {restart.restarts} restarts" if restart.restarts else "assumed"
    return f"restarts that spread by {restart.sd:.1%} ({source})"


@dataclass(frozen=True)
class HostChange:
    """How the host's own speed moved, by a fixed calibration loop that has nothing to do with the release.

    shift: log(speed after / speed before), so -0.06 is a host 6 % slower; with its interval when there are
    enough loops. alarm: it moved by more than the limit, either way.
    """

    shift: float
    interval: Interval | None
    alarm: bool

    @property
    def percent(self) -> float:
        """Speed after against before, in percent: -5.8 is slower."""
        return (math.exp(self.shift) - 1) * 100


def host_change(
    loop_before: Sequence[float], loop_after: Sequence[float], limit: float = 0.10
) -> HostChange | None:
    """Compare the loop's times (seconds, between the rounds). None when one side has none."""
    if not loop_before or not loop_after:
        return None
    speed_before, speed_after = [1 / t for t in loop_before], [1 / t for t in loop_after]
    shift = hodges_lehmann(speed_before, speed_after)
    try:
        interval = shift_interval(speed_before, speed_after)
    except TooFewRounds:
        interval = None
    ratio = math.exp(abs(shift)) - 1
    return HostChange(shift, interval, ratio > limit)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Count, mean, median, and spread of the logs (0 for one value), ready for JSON."""
    return {
        "count": len(values),
        "mean": fmean(values),
        "median": median(values),
        "spread": _sd(logs(values)) if len(values) > 1 else 0.0,
    }
