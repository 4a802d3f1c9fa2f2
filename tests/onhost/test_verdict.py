"""Verdicts as data."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost import verdict
from ddtree_deploy.onhost.verdict import Judgement


@pytest.mark.parametrize(
    ("before", "after", "ties", "expected", "words"),
    [
        ([[1, 2]], [[1, 2]], 0, "pass", "1 prompts, 2 tokens: all equal"),
        ([[1], [1, 2, 3]], [[1], [1, 9, 3]], 0, "fail", "prompt 1, position 1: token 2 before, token 9 now"),
        ([[1, 2]], [[1]], 0, "fail", "prompt 0, position 1: token 2 before, the end now"),
        ([[1]], [[1, 5]], 0, "fail", "the end before, token 5 now"),
        ([[1], [2]], [[1], [3]], 1, "pass", "up to 1 are allowed"),
        ([], [], 0, "inconclusive", "no reference"),
        ([[1]], [], 0, "inconclusive", "0 outputs to compare with 1"),
    ],
)
def test_tokens(before, after, ties, expected, words) -> None:  # type: ignore[no-untyped-def]
    judged = verdict.tokens(before, after, ties)
    assert judged.verdict == expected
    assert words in judged.reason


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
        ([a_round(2, (8, 0, 8, 0), "T\n  x\nOSError: no")], "fail", "requests completed; first error: "),
        ([a_round(), a_round(3)], "fail", "round 2: 3 of 4"),
        ([a_round(4, (8, 8, 7, 8))], "fail", "7 instead of 8 tokens"),
    ],
)  # fmt: skip
def test_case_19_a_benchmark_of_which_a_part_succeeds_fails(rounds, expected, words) -> None:  # type: ignore[no-untyped-def]
    judged = verdict.rounds_complete(rounds, 4, 8)
    assert judged.verdict == expected
    assert words in judged.reason


def test_steps_per_token() -> None:
    assert verdict.steps_per_token([None, None], [8, 8], False) == 1.0
    assert verdict.steps_per_token([4, 2], [8, 8], True) == 6 / 16
    assert verdict.steps_per_token([4, None], [8, 8], True) is None
    assert verdict.steps_per_token([], [], True) is None


@pytest.mark.parametrize(
    ("before", "after", "limit", "expected"),
    [
        (0.5, 0.4, 1.0, "pass"),
        (0.5, 0.5, 1.0, "pass"),
        (0.5, 0.51, 1.0, "fail"),
        (0.5, 0.51, 1.1, "pass"),
        (None, 0.5, 1.0, "inconclusive"),
        (0.5, None, 1.0, "inconclusive"),
    ],
)
def test_case_24_a_tree_that_accepts_less_than_the_chain_fails(before, after, limit, expected) -> None:  # type: ignore[no-untyped-def]
    assert verdict.steps_ratio(before, after, limit).verdict == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (100, 50, "pass"),
        (100, 49, "fail"),
        (100, 200, "pass"),
        (0, 10, "inconclusive"),
        (10, 0, "inconclusive"),
    ],
)
def test_speed(before, after, expected) -> None:  # type: ignore[no-untyped-def]
    assert verdict.speed_ratio(before, after, 0.5).verdict == expected


def test_the_worst_verdict_decides_and_nothing_measured_is_no_pass() -> None:
    judged = [
        Judgement("pass", "a"),
        Judgement("inconclusive", "b"),
        Judgement("fail", "c"),
        Judgement("fail", "d"),
    ]
    assert verdict.worst(judged) == Judgement("fail", "c; d")
    assert verdict.worst(judged[:2]) == Judgement("inconclusive", "b")
    assert verdict.worst([]).verdict == "inconclusive"


def test_health_needs_n_of_m() -> None:
    assert verdict.health(2, 2, 3, ["x"]).verdict == "pass"
    assert verdict.health(2, 3, 3, ["prompt 3: hung"]) == Judgement(
        "fail", "2 of 3 prompts were answered with tokens, 3 are needed; prompt 3: hung"
    )
