"""A gate that cannot decide, a gate that never ran: what the runner makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_deploy.onhost import steps
from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.judge.verdict import Verdict
from ddtree_deploy.onhost.run import runner
from ddtree_deploy.onhost.state import releases
from ddtree_deploy.onhost.state.journal import read
from ddtree_deploy.onhost.wire.protocol import StepSpec

from .serving_support import Lab, lab_at

Do = Callable[[Context], str]
real_load = steps.load


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


def passing(ctx: Context) -> str:
    return "fine"


def undecided(ctx: Context) -> str:
    raise StepFailed("cannot tell", verdict="inconclusive")


def failing(ctx: Context) -> str:
    raise StepFailed("wrong")


def settle(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, does: dict[str, Do], **changes: Any
) -> tuple[Context, dict[str, Any]]:
    """Run a plan whose steps do as told; `unlock` is the real one. Returns the `end` event."""
    ctx = lab.context(None, *(StepSpec(k, k, 60.0) for k in (*does, "unlock")), **changes)

    def load(kind: str) -> Any:
        return SimpleNamespace(do=does[kind]) if kind in does else real_load(kind)

    monkeypatch.setattr(steps, "load", load)
    runner.settle(ctx, runner.execute(ctx))
    return ctx, read(ctx.journal.path)[0][-1]


GATES: dict[str, Do] = {"install": passing, "tokens": passing, "benchmark": undecided, "soak": passing}


def test_hold_keeps_the_release_and_says_who_has_to_decide(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, end = settle(lab, monkeypatch, GATES, on_inconclusive="hold")
    assert (end["exit"], end["step"], end["verdict"]) == (7, "benchmark", "inconclusive")
    assert end["state"] == "new release held, waiting for confirm or rollback"
    assert "cannot tell" in end["reason"]
    assert end["next"] == "ddtree-deploy confirm lab, or ddtree-deploy rollback lab"
    (line,) = releases.lines(ctx.state_dir)
    assert line["verdict"] == "held"
    releases.confirm(ctx.state_dir, ctx.plan.run, "ada")
    (line,) = releases.lines(ctx.state_dir)
    assert (line["verdict"], line["confirmed_by"]) == ("good", "ada")
    with pytest.raises(LookupError, match="is not held, it is good"):
        releases.confirm(ctx.state_dir, ctx.plan.run, "ada")
    with pytest.raises(LookupError, match="is not the release that is live"):
        releases.confirm(ctx.state_dir, "20250101T000000-abcdef", "ada")


def test_without_hold_it_is_rolled_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, end = settle(lab, monkeypatch, GATES)
    assert (end["exit"], end["step"]) == (7, "benchmark")
    assert "held" not in [line["verdict"] for line in releases.lines(ctx.state_dir)]


def test_a_later_gate_that_fails_is_not_held(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _, end = settle(lab, monkeypatch, {**GATES, "soak": failing}, on_inconclusive="hold")
    assert (end["exit"], end["step"], end["reason"].split(";")[0]) == (1, "soak", "wrong")


def test_what_cannot_be_decided_before_the_stop_is_not_held(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, end = settle(lab, monkeypatch, {"baseline": undecided, **GATES}, on_inconclusive="hold")
    assert (end["exit"], end["step"]) == (7, "baseline")


def test_case_15_a_gate_that_never_ran_is_no_pass(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others passed; the one that was left out is named."""
    ctx = lab.context(None, *(StepSpec(k, k, 60.0) for k in ("install", "tokens")))
    monkeypatch.setattr(steps, "load", lambda kind: SimpleNamespace(do=passing))
    original = runner._step

    def forgets(ctx: Context, spec: StepSpec) -> Verdict:
        outcome = original(ctx, spec)
        return Verdict("skipped") if spec.name == "install" else outcome

    class Lost(list):  # type: ignore[type-arg]
        """A plan whose iteration loses its last step, as a bug in the loop would."""

        seen = 0

        def __iter__(self) -> Iterator[Any]:
            Lost.seen += 1
            return iter(list.copy(self)[:1] if Lost.seen == 1 else list.copy(self))

    monkeypatch.setattr(runner, "_step", forgets)
    object.__setattr__(ctx.plan, "steps", Lost(ctx.plan.steps))
    outcome = runner.execute(ctx)
    assert (outcome.verdict, outcome.step, outcome.reason) == ("fail", "tokens", "it never ran")


def test_case_15_a_gate_without_anything_to_judge_is_no_pass_of_a_verify(lab: Lab) -> None:
    ctx = lab.context(lab.service("adopted"), "tokens", action="verify")
    lab.start_by_hand()
    outcome = runner.execute(ctx)
    assert outcome.verdict == "inconclusive" and "no reference" in outcome.reason
    gone = lab.context(lab.service("adopted", endpoint="http://127.0.0.1:1"), "health", action="verify")
    outcome = runner.execute(gone)
    assert (outcome.verdict, outcome.reason) == ("fail", "the service is down")
