"""Verdicts as data."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost.judge import verdict
from ddtree_deploy.onhost.judge.verdict import Verdict

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("tokens", "count", "finish", "exact", "fault"),
    [
        ([1, 2, 3], 3, "length", True, ""),
        ([1, 2], 2, "stop", False, ""),
        ([1, 2], 2, "stop", True, "2 of 3 tokens came back"),
        ([], 0, "length", False, "no tokens"),
        ([1, 2, 3, 4], 4, "length", False, "3 were asked for"),
        ([1, 2, 3], 2, "length", False, "the server counts 2"),
        ([1], 1, "abort", False, "aborted"),
    ],
)
def test_an_answer_is_tokens_and_nothing_less(tokens, count, finish, exact, fault) -> None:  # type: ignore[no-untyped-def]
    found = verdict.answer(tokens, count, finish, 3, exact=exact)
    assert fault in found if fault else not found


def a_round(completed: int = 4, lens: tuple[int, ...] = (8, 8, 8, 8), error: str = "") -> dict[str, object]:
    return {"completed": completed, "output_lens": list(lens), "errors": [error]}


@pytest.mark.parametrize(
    ("rounds", "expected", "words"),
    [
        ([a_round()], "pass", "4 of 4 requests completed"),
        ([a_round(), a_round()], "pass", "in each of 2 rounds"),
        ([], "inconclusive", "no round"),
        ([a_round(2, (8, 0, 8, 0), "T\n  x\nOSError: no")], "fail", "completed; first error: OSError: no"),
        ([a_round(), a_round(3)], "fail", "round 2: 3 of 4"),
        ([a_round(4, (8, 8, 7, 8))], "fail", "7 instead of 8 tokens"),
    ],
)  # fmt: skip
def test_case_19_a_benchmark_of_which_a_part_succeeds_fails(rounds, expected, words) -> None:  # type: ignore[no-untyped-def]
    judged = verdict.rounds_complete(rounds, 4, 8)
    assert judged.verdict == expected
    assert words in judged.reason


def test_the_worst_verdict_decides_and_nothing_measured_is_no_pass() -> None:

    def said(judged: list[Verdict]) -> tuple[str, str]:
        worst = verdict.worst_of(judged)
        return worst.verdict, worst.reason

    judged = [
        Verdict("pass", "a"),
        Verdict("inconclusive", "b"),
        Verdict("fail", "c"),
        Verdict("fail", "d"),
    ]
    assert said(judged) == ("fail", "c; d")
    assert said(judged[:2]) == ("inconclusive", "b")
    assert verdict.worst_of([]).verdict == "inconclusive"


def test_health_needs_n_of_m() -> None:
    assert verdict.health(2, 2, 3, ["x"]).verdict == "pass"
    assert verdict.health(2, 3, 3, ["prompt 3: hung"]) == Verdict(
        "fail", "2 of 3 prompts were answered with tokens, 3 are needed; prompt 3: hung"
    )


def test_of_a_long_error_the_last_line_is_shown_as_far_as_it_fits() -> None:
    (error,) = {
        verdict.rounds_complete([a_round(2, (8, 8), text)], 4, 8).reason.split("first error: ")[1]
        for text in ("x" * 300, "first\n" + "x" * 300 + "\n \n")
    }
    assert error == "x" * 200
    assert "first error" not in verdict.rounds_complete([a_round(2, (8, 8))], 4, 8).reason
