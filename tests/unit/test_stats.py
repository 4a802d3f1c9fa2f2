"""The statistic against brute force, and what it says of hosts before anything is stopped."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ddtree_deploy.onhost.judge import stats


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (4, 4), (5, 3)])
def test_the_null_distribution_is_that_of_all_orders(m: int, n: int) -> None:
    counts: dict[int, int] = {}
    for chosen in itertools.combinations(range(m + n), m):
        rest = [i for i in range(m + n) if i not in chosen]
        u = sum(a > b for a in chosen for b in rest)
        counts[u] = counts.get(u, 0) + 1
    assert stats._counts(m, n) == tuple(counts[u] for u in range(m * n + 1))


@pytest.mark.parametrize(("n", "rank"), [(4, 1), (5, 3), (6, 6), (7, 9), (8, 14), (10, 24)])
def test_interval_ranks_are_those_of_the_printed_tables(n: int, rank: int) -> None:
    """One more than the critical U of the two-sided 5 % tables (0, 2, 5, 8, 13, 23)."""
    k, coverage = stats.interval_rank(n, n)
    assert k == rank
    assert coverage >= 0.95


def test_three_rounds_have_no_interval() -> None:
    with pytest.raises(stats.TooFewRounds, match="3 and 3 rounds are too few"):
        stats.shift_interval([1, 2, 3], [1, 2, 3])


def test_shift_is_the_median_of_all_ratios() -> None:
    before, after = [100.0, 110.0, 90.0, 105.0], [50.0, 55.0, 45.0, 52.5]
    assert math.exp(stats.hodges_lehmann(before, after)) == pytest.approx(0.5)
    interval = stats.shift_interval(before, after)
    assert interval.low < interval.shift < interval.high
    assert math.exp(interval.low) == pytest.approx(45 / 110)
    assert math.exp(interval.high) == pytest.approx(55 / 90)


def test_one_wild_round_moves_neither_shift_nor_interval_much() -> None:
    before = [100.0, 101, 99, 102, 98, 100, 101, 99]
    calm = stats.shift_interval(before, before)
    wild = stats.shift_interval(before, [*before[:-1], 5.0])
    assert abs(wild.shift - calm.shift) < 0.01
    assert abs(wild.low - calm.low) < 0.02


def test_the_interval_is_the_set_of_shifts_that_the_test_does_not_reject() -> None:
    rng = random.Random(4)
    before = [math.exp(rng.gauss(0, 0.1)) for _ in range(8)]
    after = [math.exp(rng.gauss(0, 0.1)) for _ in range(8)]
    interval = stats.shift_interval(before, after)

    def p(shift: float) -> float:
        """Exact and two-sided, of Mann and Whitney's test; no ties."""
        u = sum(a * math.exp(-shift) > b for a in after for b in before)
        tail = sum(stats._counts(8, 8)[: min(u, 64 - u) + 1])
        return min(1.0, 2 * tail / math.comb(16, 8))

    for end, outwards in ((interval.low, -1e-9), (interval.high, 1e-9)):
        assert p(end + outwards) <= 0.05 < p(end - outwards)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_round_without_a_logarithm_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="no logarithm"):
        stats.shift_interval([1.0] * 5, [1.0, 1, 1, 1, bad])


def test_widening_adds_in_quadrature() -> None:
    interval = stats.Interval(0.0, -0.03, 0.03, 0.95).widened(stats.RestartSpread(0.02).half_width(0.03, 16))
    expected = math.sqrt(0.03**2 + (1.959964 * math.sqrt(2) * 0.02) ** 2)
    assert interval.high == pytest.approx(expected, rel=1e-6)
    assert interval.low == pytest.approx(-expected, rel=1e-6)


def test_a_spread_from_few_restarts_counts_for_more_than_a_known_one() -> None:
    known = stats.RestartSpread(0.02).half_width(0.01, 16)
    six = stats.RestartSpread(0.02, 6).half_width(0.01, 16)
    many = stats.RestartSpread(0.02, 400).half_width(0.01, 16)
    assert six > many > known
    assert stats.RestartSpread(0.0, 6).half_width(0.01, 16) == 0


@pytest.mark.parametrize(("df", "quantile"), [(5, 2.5706), (7, 2.3646), (14, 2.1448), (30, 2.0423)])
def test_t_factor_is_students(df: int, quantile: float) -> None:
    assert stats.t_factor(df) == pytest.approx(quantile, rel=2e-3)


def test_restart_spread_finds_the_spread_between_restarts() -> None:
    rng = random.Random(2)
    levels = [rng.gauss(0, 0.05) for _ in range(400)]
    found = stats.restart_spread([[math.exp(x + rng.gauss(0, 0.005)) for _ in range(8)] for x in levels])
    assert found.restarts == 400
    assert found.sd == pytest.approx(0.05, rel=0.1)
    with pytest.raises(ValueError, match="2 restarts"):
        stats.restart_spread([[1.0, 2.0], [1.0, 2.0]])


def noisy(rng: random.Random, sd: float, n: int = 8) -> list[float]:
    return [100 * math.exp(rng.gauss(0, sd)) for _ in range(n)]


def test_two_shared_cores_cannot_resolve_5_percent_and_say_so() -> None:
    found = stats.resolution(noisy(random.Random(1), 0.08), 0.95, stats.RestartSpread(0.089, 7))
    assert not found.resolvable
    assert "min_ratio 0.95 cannot be resolved on this host" in found.text
    assert "measured over 7 restarts" in found.text
    twice = stats.resolution(noisy(random.Random(1), 0.08), 0.5, stats.RestartSpread(0.089, 7))
    assert twice.resolvable


def test_a_quiet_gpu_host_can_resolve_5_percent() -> None:
    found = stats.resolution(noisy(random.Random(1), 0.01), 0.95, stats.RestartSpread(0.007))
    assert found.resolvable
    assert found.chance > 0.95
    assert 0.95 < found.smallest_ratio < 1


def test_a_min_ratio_above_one_needs_an_expected_gain() -> None:
    before = noisy(random.Random(1), 0.01)
    assert not stats.resolution(before, 1.1, stats.RestartSpread(0.007)).resolvable
    assert stats.resolution(before, 1.1, stats.RestartSpread(0.007), expected_ratio=1.3).resolvable


def test_the_predicted_half_width_is_the_mean_of_the_real_ones() -> None:
    rng = random.Random(3)
    widths = [
        stats.shift_interval(noisy(rng, 0.05, n=8), noisy(rng, 0.05, n=8)).half_width for _ in range(600)
    ]
    predicted = stats.expected_half_width(0.05, 8, 8)
    assert sum(widths) / len(widths) == pytest.approx(predicted, rel=0.05)


def test_three_rounds_a_side_resolve_nothing() -> None:
    with pytest.raises(stats.TooFewRounds, match="3 and 3 rounds are too few"):
        stats.expected_half_width(0.05, 3, 3)
    with pytest.raises(stats.TooFewRounds):
        stats.resolution([1.0, 1.1, 1.2], 0.95, None)
    assert stats.resolution([1.0, 1.1, 1.2, 1.1], 0.5, None).half_width > 0


def test_more_rounds_after_make_a_narrower_interval() -> None:
    before = noisy(random.Random(1), 0.05)
    as_many, more = stats.resolution(before, 0.9, None), stats.resolution(before, 0.9, None, rounds_after=16)
    assert more.half_width < as_many.half_width
    assert "8 + 8 rounds" in as_many.text and "8 + 16 rounds" in more.text


def test_the_chance_of_a_pass_is_one_half_where_the_interval_is_as_wide_as_the_margin() -> None:
    before = noisy(random.Random(1), 0.05)
    for restart in (None, stats.RestartSpread(0.03, 8)):
        found = stats.resolution(before, 0.9, restart)
        assert 0 < found.chance < 1
        edge = stats.resolution(before, found.smallest_ratio, restart)
        assert edge.chance == pytest.approx(0.5)
        assert stats.resolution(before, found.smallest_ratio * 0.99, restart).chance > 0.5


def test_rounds_without_any_spread_decide_for_sure() -> None:
    assert stats.resolution([5.0] * 8, 0.95, None).chance == 1.0
    assert stats.resolution([5.0] * 8, 1.0, None).chance == 0.0


def test_the_host_alarm() -> None:
    calm = stats.host_change([1.0, 1.01, 0.99, 1.0, 1.02], [1.0, 1.02, 1.01, 0.99, 1.0])
    assert calm is not None and not calm.alarm
    slower = stats.host_change([1.0] * 5, [1.18] * 5)
    assert slower is not None and slower.alarm
    assert slower.percent == pytest.approx(-15.25, abs=0.01)
    faster = stats.host_change([1.18] * 5, [1.0] * 5)
    assert faster is not None and faster.alarm
    assert stats.host_change([], [1.0]) is None
    single = stats.host_change([1.0], [1.3])
    assert single is not None and single.alarm and single.interval is None
