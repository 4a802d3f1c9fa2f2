"""The speed gate's verdicts as data, and its error rates in a small seeded study."""

from __future__ import annotations

import io
import json
import math
import random
import runpy
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.judge.speed import Measurements, Round, judge
from ddtree_deploy.onhost.judge.stats import RestartSpread, shift_interval

STUDY = Path(__file__).resolve().parents[2] / "benchmarks" / "gate_study.py"
LOOP = (1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99, 1.0)


def rounds(ratio: float = 1.0, sd: float = 0.01, seed: int = 0, n: int = 8) -> list[Round]:
    """A warm-up and n rounds of 300 requests of 32 tokens, about 6 s each at ratio 1."""
    rng = random.Random(seed)
    times = [6 / ratio * math.exp(rng.gauss(0, sd)) for _ in range(n)]
    return [Round(300, 300, 9600, 9600, 60, warmup=True), *(Round(300, 300, 9600, 9600, t) for t in times)]


def measured(ratio: float = 1.0, **changes: Any) -> Measurements:
    base = Measurements(
        rounds(seed=1),
        rounds(ratio, seed=2),
        0.95,
        RestartSpread(0.007, 8),
        loop_before=LOOP,
        loop_after=LOOP,
    )
    return replace(base, **changes)


def told(case: Measurements) -> tuple[str, str, dict[str, Any]]:
    found = judge(case)
    return found.verdict, found.reason, found.figures


def test_as_fast_as_before_passes_with_its_figures() -> None:
    verdict, reason, figures = told(measured())
    assert verdict == "pass", reason
    assert figures["ratio"] == pytest.approx(1, rel=0.02)
    assert reason.endswith("min_ratio 0.95")
    assert figures["interval"][0] > 0.95 > figures["interval"][0] - 0.05
    assert figures["restart"] == {"sd": 0.007, "restarts": 8, "source": "calibrated, 8 restarts"}
    assert figures["rounds"]["before"]["used"] == [False] + [True] * 8
    assert figures["notes"] == []


def test_a_round_is_read_from_the_client_s_own_result() -> None:
    raw = {"completed": 160, "duration": 5.0, "total_output_tokens": 5120, "output_lens": [32] * 160}
    made = Round.of_client(raw, 300, 32)
    assert made == Round(300, 160, 9600, 5120, 5.0)
    assert made.void == "160 of 300 requests completed"
    del raw["total_output_tokens"]
    assert Round.of_client(raw, 160, 32, warmup=True) == Round(160, 160, 5120, 5120, 5.0, warmup=True)
    assert Round.of_client({}, 4, 8).void == "0 of 4 requests completed"


@pytest.mark.parametrize(
    ("made", "throughput", "void"),
    [
        (Round(1, 1, 8, 8, 0.0), 0.0, "nothing was generated"),
        (Round(1, 1, 8, 8, 10.0), 0.8, ""),
        (Round(1, 1, 8, 8, 0.5), 16.0, ""),
        (Round(1, 1, 0, 0, 5.0), 0.0, "nothing was generated"),
        (Round(1, 1, 0, 3, 2.0), 1.5, ""),
    ],
)
def test_a_round_counts_however_slow_or_short_but_not_without_time_or_tokens(
    made: Round, throughput: float, void: str
) -> None:
    assert (made.throughput, made.void) == (throughput, void)


@pytest.mark.parametrize("n", [8, 6])
def test_the_interval_is_widened_by_the_restarts_for_all_rounds_of_both_sides(n: int) -> None:
    spread = RestartSpread(0.01, 6)
    case = measured(before=rounds(sd=0.03, seed=1), after=rounds(sd=0.03, seed=2, n=n), restart=spread)
    before, after = ([r.throughput for r in side[1:]] for side in (case.before, case.after))
    alone = shift_interval(before, after)
    wide = alone.widened(spread.half_width(alone.half_width, 8 + n))
    assert judge(case).figures["interval"] == pytest.approx([math.exp(wide.low), math.exp(wide.high)])


def test_figures_are_plain_json() -> None:
    for case in (measured(), measured(restart=None), measured(after=rounds(n=3))):
        figures = judge(case).figures
        assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_half_as_fast_fails() -> None:
    verdict, reason, figures = told(measured(0.5))
    assert verdict == "fail"
    assert reason.startswith("speed ratio ")
    assert figures["ratio"] == pytest.approx(0.5, rel=0.02)


def test_an_interval_that_holds_min_ratio_is_inconclusive() -> None:
    verdict, reason, _ = told(measured(0.955))
    assert verdict == "inconclusive"
    assert reason.endswith("the interval holds min_ratio")


def test_a_noisy_host_is_told_so() -> None:
    noisy = measured(before=rounds(sd=0.1, seed=1), after=rounds(sd=0.1, seed=2))
    verdict, reason, _ = told(noisy)
    assert verdict == "inconclusive"
    assert "this host is too noisy for it" in reason


def test_case_19_lost_requests_fail_although_the_rest_is_fast() -> None:
    after = rounds(2.0, seed=2)
    after[4] = Round(300, 160, 9600, 5120, 1.5)
    verdict, reason, figures = told(measured(after=after))
    assert verdict == "fail"
    assert reason == "round 5 of 9 after: 160 of 300 requests completed"
    assert figures["rounds"]["after"]["void"] == [{"round": 5, "why": "160 of 300 requests completed"}]


def test_lost_tokens_and_a_lost_warm_up_fail_too() -> None:
    after = rounds(seed=2)
    after[0] = replace(after[0], output_tokens=9000)
    verdict, reason, _ = told(measured(after=after))
    assert (verdict, reason) == ("fail", "round 1 of 9 after: 9000 of 9600 output tokens")


def test_an_old_service_that_lost_requests_as_well_is_no_reason_to_blame_the_new() -> None:
    before, after = rounds(seed=1), rounds(seed=2)
    before[3] = replace(before[3], completed=299)
    after[3] = replace(after[3], completed=299)
    verdict, reason, _ = told(measured(before=before, after=after))
    assert verdict == "inconclusive"
    assert "the old service did the same" in reason


def test_void_rounds_before_are_left_out_and_counted() -> None:
    before = rounds(seed=1)
    before[3] = replace(before[3], completed=299)
    verdict, _, figures = told(measured(before=before))
    assert verdict == "pass"
    assert figures["notes"] == ["7 rounds before could be used, 8 were wanted"]
    for i in range(4, 7):
        before[i] = replace(before[i], completed=0, output_tokens=0)
    verdict, reason, _ = told(measured(before=before))
    assert verdict == "inconclusive"
    assert reason == "4 rounds before and 8 after are too few to judge, 5 are needed; 4 before are void"


@pytest.mark.parametrize("factor", [1.2, 1 / 1.2])
def test_a_changed_host_makes_no_verdict(factor: float) -> None:
    verdict, reason, figures = told(measured(1 / factor, loop_after=[t * factor for t in LOOP]))
    assert verdict == "inconclusive"
    assert reason.startswith("host changed: the calibration loop ran")
    assert figures["host_changed"] is True
    assert figures["host_change"]["alarm"] is True


def test_a_failure_that_a_small_drift_explains_is_taken_back() -> None:
    drifted = measured(0.92, loop_after=[t * 1.07 for t in LOOP])
    assert judge(replace(drifted, loop_before=(), loop_after=())).verdict == "fail"
    verdict, reason, _ = told(drifted)
    assert verdict == "inconclusive"
    assert reason.startswith(
        "host changed: the calibration loop ran 6.5 % slower [-7.5 %, -5.6 %], which may be"
    )


def test_a_loop_that_says_little_takes_a_failure_back_and_says_why() -> None:
    wild = [1.0, 1.2, 0.85, 1.1, 0.9, 1.15, 0.8, 1.0]
    verdict, reason, _ = told(measured(0.92, loop_before=wild, loop_after=wild[::-1]))
    assert verdict == "inconclusive"
    assert reason.startswith("host not steady enough: the calibration loop ran 0.0 % faster [-")


def test_a_pass_that_a_faster_host_explains_is_taken_back() -> None:
    drifted = measured(1.0, loop_after=[t / 1.07 for t in LOOP])
    assert judge(drifted).verdict == "inconclusive"


def test_a_small_drift_does_not_save_a_server_that_is_half_as_fast() -> None:
    assert judge(measured(0.5, loop_after=[t * 1.07 for t in LOOP])).verdict == "fail"


def test_without_calibration_the_best_is_inconclusive_and_it_says_so() -> None:
    verdict, reason, figures = told(measured(2.0, restart=None))
    assert verdict == "inconclusive"
    assert "not calibrated" in reason
    assert figures["restart"] is None
    assert judge(measured(1.0, restart=None)).verdict == "inconclusive"
    assert judge(measured(0.5, restart=None)).verdict == "fail"


def test_an_assumed_spread_is_taken_and_named() -> None:
    verdict, _, figures = told(measured(restart=RestartSpread(0.007), assumed=True))
    assert verdict == "pass"
    assert figures["restart"]["source"] == "assumed in the playbook"


def test_without_a_calibration_loop_it_notes_that_a_changed_host_would_not_be_seen() -> None:
    verdict, _, figures = told(measured(loop_before=(), loop_after=()))
    assert verdict == "pass"
    assert "a change of the host would not be seen" in figures["notes"][0]


def test_a_min_ratio_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="min_ratio"):
        judge(measured(min_ratio=0.0))


def test_the_study_holds_on_a_few_hundred_trials() -> None:
    study = runpy.run_path(str(STUDY))
    printed = io.StringIO()
    with redirect_stdout(printed):
        failures = study["run"](trials=200, seed=7, with_bootstrap=False)
    # 200 trials cannot tell 2.5 % from 4 %: the boundary has its own allowance, the others are far from
    # theirs.
    assert failures == []
    assert "quiet host" in printed.getvalue()


def test_the_study_can_fail() -> None:
    """Told that restarts do not differ, the same gate fails good releases; early looks at a bootstrap as
    well."""
    study = runpy.run_path(str(STUDY))
    rng = random.Random(1)
    rules = {
        "rounds alone": study["rounds_only"],
        "looks": study["Bootstrap"](rng, (3, 5, 8), resamples=200),
    }
    counts = study["shares"](rules, study["NOISY_RESTARTS"], 1.0, 1.0, trials=400, seed=3)
    assert counts["rounds alone"]["fail"] / 400 > study["allowed"](400)
    assert counts["looks"]["fail"] / 400 > 0.10
