"""Token for token, ties by the reference's own gap, and the acceptance of tree against chain."""

from __future__ import annotations

import pytest

from ddtree_deploy.onhost.judge.agreement import (
    EPSILON_FLOOR,
    Continuation,
    first_divergence,
    identity_differences,
    judge_acceptance,
    judge_tokens,
    self_agreement,
)
from ddtree_deploy.onhost.measure.greedy import Sample


def answer(tokens: list[int], *, gap: float = 2.0, prompt: str = "p1", known: bool = True) -> Continuation:
    """An answer whose second best token is always the best one plus 1, `gap` behind."""
    top2 = [[(t, -0.1), (t + 1, -0.1 - gap)] for t in tokens] if known else []
    return Continuation(prompt, tokens, [-0.1] * len(tokens), top2)


def test_equal_answers_pass() -> None:
    verdict = judge_tokens([answer([1, 2, 3])], [answer([1, 2, 3])], epsilon=1e-4)
    assert (verdict.verdict, verdict.figures["equal"], verdict.figures["ties"]) == ("pass", 1, 0)


def test_a_wrong_token_fails_and_is_named() -> None:
    verdict = judge_tokens([answer([1, 2, 3])], [answer([1, 9, 3])], epsilon=1e-4)
    assert verdict.verdict == "fail"
    assert verdict.reason.startswith(
        "prompt p1, position 1: expected token 2 (log-prob -0.1000), got token 9 (log-prob -0.1000); gap 2"
    )
    assert verdict.figures["divergences"][0]["around"] == {"from": 0, "expected": [1, 2, 3], "got": [1, 9, 3]}


def test_only_the_first_divergence_counts() -> None:
    found = first_divergence(answer([1, 2, 3, 4]), answer([1, 2, 8, 9]), 1e-4)
    assert found is not None and found.position == 2


def test_a_tie_is_counted_not_failed_up_to_the_allowed_share() -> None:
    reference = [answer([1, 2, 3], gap=1e-6, prompt=str(i)) for i in range(4)]
    candidate = [answer([1, 2, 3], prompt=str(i)) for i in range(3)] + [answer([1, 3, 7], prompt="3")]
    allowed = judge_tokens(reference, candidate, epsilon=1e-4, max_tie_share=0.25)
    assert (allowed.verdict, allowed.figures["ties"]) == ("pass", 1)
    assert "1 up to a tie" in allowed.reason
    refused = judge_tokens(reference, candidate, epsilon=1e-4, max_tie_share=0.2)
    assert refused.verdict == "fail"
    assert "1 of 4 prompts part at a tie" in refused.reason


def test_the_figures_count_equal_answers_and_tokens() -> None:
    reference = [answer([1, 2, 3], gap=1e-6, prompt=str(i)) for i in range(4)]
    candidate = [answer([1, 2, 3], prompt=str(i)) for i in range(3)] + [answer([1, 3, 7], prompt="3")]
    figures = judge_tokens(reference, candidate, epsilon=1e-4).figures
    assert (figures["prompts"], figures["tokens"], figures["equal"], figures["ties"]) == (4, 12, 3, 1)
    missing = judge_tokens(reference, candidate[1:], epsilon=1e-4).figures
    assert (missing["prompts"], missing["equal"]) == (4, 2)


def test_a_close_race_that_a_third_token_wins_is_no_tie() -> None:
    verdict = judge_tokens(
        [answer([1, 2, 3], gap=1e-6)], [answer([1, 77, 3])], epsilon=1e-4, max_tie_share=1.0
    )
    assert verdict.verdict == "fail"


def test_stopping_early_or_late_is_a_failure_even_at_a_tie() -> None:
    for got in ([1, 2], [1, 2, 3, 4]):
        verdict = judge_tokens([answer([1, 2, 3], gap=1e-6)], [answer(got)], epsilon=1e-4, max_tie_share=1.0)
        assert verdict.verdict == "fail"
        assert "the end" in verdict.reason


def test_without_logprobs_a_divergence_is_inconclusive() -> None:
    verdict = judge_tokens([answer([1, 2], known=False)], [answer([1, 3], known=False)], epsilon=1e-4)
    assert verdict.verdict == "inconclusive"
    assert "gap unknown" in verdict.reason


def test_missing_answers_fail_and_no_reference_is_inconclusive() -> None:
    assert judge_tokens([answer([1])], [], epsilon=1e-4).reason == "no answer to prompt p1 (1 of 1 missing)"
    assert judge_tokens([], [], epsilon=1e-4).verdict == "inconclusive"


def test_epsilon_comes_from_the_reference_against_itself() -> None:
    first = [answer([1, 2, 3], gap=3e-4, prompt="a"), answer([5, 6], prompt="b")]
    again = [answer([1, 3, 9], prompt="a"), answer([5, 6], prompt="b")]
    epsilon, share = self_agreement([first, first, again])
    assert epsilon == pytest.approx(6e-4)
    assert share == 0.5
    assert self_agreement([first, first]) == (EPSILON_FLOOR, 0.0)
    with pytest.raises(ValueError, match="at least 2"):
        self_agreement([first])
    with pytest.raises(ValueError, match="no log-probs"):
        self_agreement([[answer([1], known=False)], [answer([2])]])


def test_a_golden_of_another_gpu_is_named() -> None:
    golden = {"model": "m", "gpu": "H200", "dtype": "bfloat16"}
    assert identity_differences(golden, golden) == []
    assert identity_differences(golden, golden | {"gpu": "L4"}) == ["gpu: recorded 'H200', here 'L4'"]


def test_acceptance_over_the_set_is_a_ratio_of_sums() -> None:
    both = Sample(["0", "1"], [[], []], completion=[32, 64], verify_steps=[16, 16], speculative="DDTREE")
    assert both.accept_length() == 3
    assert both.steps_per_token() == pytest.approx(1 / 3)
    nothing = Sample([], [], [], [], speculative="DDTREE")
    assert nothing.accept_length() is nothing.steps_per_token() is None


def test_case_24_a_tree_that_accepts_less_than_the_chain_over_the_set_fails() -> None:
    worse = judge_acceptance(4.92, 5.82, 0.02, what="accept length", against="the chain")
    assert worse.verdict == "fail"
    assert worse.reason == "accept length 4.920, the chain 5.820 (-15.5%, tolerance 2.0%)"
    assert judge_acceptance(5.75, 5.82, 0.02, what="accept length", against="the chain").verdict == "pass"
    assert judge_acceptance(9.0, 5.82, 0.02, what="accept length", against="the chain").verdict == "pass"


def test_more_steps_per_token_are_worse() -> None:
    what = "verify steps per token"
    assert judge_acceptance(0.6, 0.5, 0.0, what=what, against="x", higher_is_better=False).verdict == "fail"
    assert judge_acceptance(0.4, 0.5, 0.0, what=what, against="x", higher_is_better=False).verdict == "pass"
    nothing = judge_acceptance(0.0, 0.5, 0.0, what=what, against="x", higher_is_better=False)
    assert nothing.verdict == "inconclusive"
