"""A server that hangs ends the step that asks it after `hang_after`, whichever gate that is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import Context, StepFailed
from ddtree_deploy.onhost.measure import bench_rounds
from ddtree_deploy.onhost.service import serving
from ddtree_deploy.onhost.wire.protocol import Launch, StepSpec

from .serving_support import Lab, do, lab_at
from .test_gate_benchmark import CLIENT, client, failed, prompts

HANG = {"hang_after_s": 2.0}
BENCH = {"num_prompts": 12, "concurrency": 4, "output_len": 8, "rounds": 2, "min_round_s": 0.0}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        client(tmp_path, "benchmark/serving.py")
        yield made


def serving_now(lab: Lab, *specs: StepSpec, **changes: Any) -> Context:
    """A run on a service that somebody started, as `verify` has it."""
    lab.start_by_hand("--speculative-algorithm", "DFLASH")
    wanted = Launch(env={"PYTHONPATH": str(lab.root / "venv")})
    ctx = lab.context(lab.service("adopted", launch=wanted), *specs, **{"action": "verify", **changes})
    prompts(ctx, 20)
    return ctx


def asked_for(ctx: Context, name: str) -> tuple[str, float]:
    """The reason of its failure, and how long the step took."""
    begun = time.monotonic()
    reason = failed(ctx, name).reason
    return reason, time.monotonic() - begun


@pytest.mark.parametrize("answered", [3, 11, 15])
def test_case_39_a_server_that_hangs_ends_the_benchmark(lab: Lab, answered: int) -> None:
    """In the warm-up or in a round that counts: not the client's patience, nor the step's, is waited for."""
    step = StepSpec("benchmark", "benchmark", 120, {"bench": BENCH, "hang_after_s": 5.0, "min_ratio": None})
    ctx = serving_now(lab, step)
    lab.mood(hang_after_requests=answered)
    reason, seconds = asked_for(ctx, "benchmark")
    assert reason.startswith(f"it hangs: in benchmark round {1 + answered // 12} of 3 no request"), reason
    assert "has ended for 5 s" in reason and seconds < 50.0


@pytest.mark.parametrize("answered", [1, 3, 6, 10])
def test_case_39_a_server_that_hangs_ends_the_baseline(lab: Lab, answered: int) -> None:
    """Asked for log-probs, one by one, again, and together."""
    step = StepSpec("baseline", "baseline", 120, {"tokens": 3, "max_new_tokens": 12, "bench": None, **HANG})
    ctx = serving_now(lab, step, action="rollout")
    lab.mood(hang_after_requests=answered)
    reason, seconds = asked_for(ctx, "baseline")
    assert reason.startswith("it hangs: ") and "no answer within 2 s" in reason, reason
    assert seconds < 50.0


def test_case_39_a_server_that_hangs_in_the_rounds_of_the_baseline_ends_it(lab: Lab) -> None:
    options = {"tokens": 1, "max_new_tokens": 4, "bench": BENCH, "hang_after_s": 5.0}
    ctx = serving_now(lab, StepSpec("baseline", "baseline", 120, options), action="rollout")
    lab.mood(hang_after_requests=12)
    reason, _ = asked_for(ctx, "baseline")
    assert reason.startswith("it hangs: in benchmark round 1 of 3"), reason


@pytest.mark.parametrize("gate", ["tokens", "acceptance"])
def test_case_39_a_server_that_hangs_ends_every_gate_that_asks(lab: Lab, gate: str) -> None:
    baseline = StepSpec("baseline", "baseline", 120, {"tokens": 3, "max_new_tokens": 12, "bench": None})
    ctx = serving_now(lab, baseline, StepSpec(gate, gate, 120, dict(HANG)), action="rollout")
    do(ctx, "baseline")
    lab.mood(hung=True)
    reason, seconds = asked_for(ctx, gate)
    assert reason.startswith("it hangs: ") and seconds < 50.0, reason


def test_a_longer_answer_may_take_longer(lab: Lab) -> None:
    ctx = lab.context(lab.service(), StepSpec("tokens", "tokens", 120, {"hang_after_s": 10.0}))
    assert [serving.hang_s(ctx, n) for n in (1, 128, 512)] == [10.0, 10.0, 40.0]
    assert serving.hang_s(dataclasses.replace(ctx, step=StepSpec("x", "soak", 1.0)), 16) == 60.0


def test_only_a_request_that_ended_is_a_sign_of_life(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = lab.context(lab.service(), StepSpec("benchmark", "benchmark", 120, {"hang_after_s": 60.0}))
    now = [1000.0]
    monkeypatch.setattr(bench_rounds.time, "monotonic", lambda: now[0])
    follow = bench_rounds._Follow(ctx, bench_rounds.Bench(num_prompts=32))
    now[0] += 500
    follow.look()  # the client is being loaded
    follow.line("DDTREE-BENCH round 1 of 9")
    for done in (1, 2):
        now[0] += 50
        follow.line(f" {done}/32 [00:50<10:00]")
        follow.look()
    now[0] += 50
    follow.line(" 2/32 [01:40<10:00]")  # drawn again
    follow.look()
    now[0] += 11
    with pytest.raises(StepFailed, match="no request has ended for 60 s, after 2 of 32 requests"):
        follow.look()
    follow.line("DDTREE-BENCH round 2 of 9")
    follow.look()


def test_the_stand_in_of_the_client_is_as_quiet_as_a_client_can_be() -> None:
    """Else the rounds above would not show that its silence is noticed."""
    assert "print" not in CLIENT.read_text()
