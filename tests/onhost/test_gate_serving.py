"""start, health, tokens, soak against the fake server's moods."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.onhost.context import Context, Interrupt, StepFailed, StepSkipped
from ddtree_deploy.onhost.service.ready import Progress, loading
from ddtree_deploy.onhost.steps import unlock
from ddtree_deploy.onhost.wire.protocol import StepSpec

from .serving_support import Lab, do, journal_text, lab_at, launch, of, port_open, until


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_at(tmp_path) as made:
        yield made


def started(lab: Lab, *gates: StepSpec | str, flags: tuple[str, ...] = (), **service: Any) -> Context:
    """A run that has come as far as `start`."""
    ctx = lab.context(lab.service(launch=launch(lab, *flags), **service), "start", *gates)
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    return ctx


def carries(ctx: Context) -> str:
    return f"the process carries release {ctx.plan.run}"


def failed(ctx: Context, name: str) -> StepFailed:
    with pytest.raises(StepFailed) as e:
        do(ctx, name)
    return e.value


def prompts(ctx: Context, count: int = 8) -> None:
    folder = ctx.stage_dir / "payload" / "attachments"
    folder.mkdir(parents=True)
    rows = [
        {"conversations": [{"content": f"prompt number {i}"}, {"content": "an answer"}]} for i in range(count)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


# ---- start --------------------------------------------------------------------------------------------


def test_case_20_slow_loading_with_progress_is_no_stall(lab: Lab) -> None:
    lab.mood(load_s=4.0, load_lines=40)
    ctx = started(lab, start_stalled_after_s=1.5)
    assert "Loading safetensors checkpoint shards" in journal_text(ctx)


def test_case_20_a_load_that_stalls_fails_with_the_last_log_lines(lab: Lab) -> None:
    lab.mood(stall=True)
    ctx = lab.context(lab.service(launch=launch(lab), start_stalled_after_s=1.0), "start")
    of(ctx).apply_launch(ctx)
    reason = failed(ctx, "start").reason
    assert reason.startswith("no progress for 1 s") and "Capturing CUDA graphs" in reason


def test_the_limit_holds_even_with_progress(lab: Lab) -> None:
    lab.mood(load_s=60.0, load_lines=600)
    ctx = lab.context(lab.service(launch=launch(lab), start_limit_s=2.0), "start")
    of(ctx).apply_launch(ctx)
    assert failed(ctx, "start").reason.startswith("not serving after 2 s")


def test_a_server_that_ends_at_once_fails_at_once(lab: Lab) -> None:
    lab.mood(exit_at_once=3)
    ctx = lab.context(lab.service(launch=launch(lab)), "start")
    of(ctx).apply_launch(ctx)
    reason = failed(ctx, "start").reason
    assert "it ended with exit status 3" in reason and "fake failure at start" in reason


def test_a_command_that_does_not_exist_is_said(lab: Lab) -> None:
    service = lab.service(launch=launch(lab).__class__(command=["/nosuch/python", "-m", "sglang"]))
    ctx = lab.context(service, "start")
    of(ctx).apply_launch(ctx)
    assert "cannot start /nosuch/python" in failed(ctx, "start").reason


def test_case_16_a_server_that_is_healthy_but_hung_does_not_start(lab: Lab) -> None:
    lab.mood(hung=True)
    ctx = lab.context(lab.service(launch=launch(lab), start_stalled_after_s=2.0), "start")
    of(ctx).apply_launch(ctx)
    reason = failed(ctx, "start").reason
    assert "no progress for 2 s" in reason and "fired up and ready to roll" in reason


def test_an_interrupt_ends_the_wait_for_a_start(lab: Lab) -> None:
    lab.mood(stall=True)
    ctx = lab.context(lab.service(launch=launch(lab)), "start")
    of(ctx).apply_launch(ctx)
    threading.Thread(
        target=lambda: (until(lambda: "Capturing" in journal_text(ctx), "it loads"), ctx.stop_event.set())
    ).start()
    with pytest.raises(Interrupt):
        do(ctx, "start")


def test_no_secret_is_shown_when_a_start_fails(lab: Lab) -> None:
    lab.mood(exit_at_once=1)
    service = lab.service(launch=launch(lab, "--api-key", "s3cret-of-the-argv"))
    ctx = lab.context(service, "start", secrets={"api_key": "s3cret-of-the-plan"})
    of(ctx).apply_launch(ctx)
    reason = failed(ctx, "start").reason
    assert "--api-key ***" in reason
    assert "s3cret" not in reason + journal_text(ctx) + json.dumps(of(ctx).describe().__dict__)


def test_progress_is_any_of_log_bytes_read_and_gpu_memory() -> None:
    p = Progress(0.0)
    assert p.sample(1, "100", 0, -1)
    assert not p.sample(2, "100", 1000, -1), "a server that idles reads a little"
    assert p.sample(3, "100", 1 << 20, -1)
    assert p.sample(4, "100", 1 << 20, 500)
    assert not p.sample(5, "100", 1 << 20, 500)
    assert p.stalled(15, 10) and not p.stalled(13, 10)


def test_what_a_start_shows_is_a_line_that_says_something_and_gpu_memory() -> None:
    lines = ["Load weight begin.", "  warnings.warn("]
    assert loading(lines, -1) == "Load weight begin."
    assert loading(lines, 4096) == "Load weight begin. (GPU memory 4096 MiB)"
    assert loading([], 512) == "(GPU memory 512 MiB)" and loading(["  warnings.warn(x)"], -1) == ""


# ---- health -------------------------------------------------------------------------------------------


def test_a_healthy_server_passes_with_its_api_key(lab: Lab) -> None:
    service = lab.service(launch=launch(lab, "--api-key", "s3cret-key"))
    ctx = lab.context(service, "start", "health", secrets={"api_key": "s3cret-key"})
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    assert do(ctx, "health") == f"3 of 3 prompts were answered with tokens; {carries(ctx)}"
    assert "s3cret" not in journal_text(ctx)


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ({"hung": True}, "no answer within"),
        ({"no_tokens": True}, "no tokens came back"),
        ({"fail_every": 1}, "status 500"),
        ({"crash_after_requests": 1}, "connection lost"),
    ],
)
def test_case_16_health_fails_within_its_deadline(lab: Lab, mood: dict[str, Any], words: str) -> None:
    ctx = started(lab, StepSpec("health", "health", 60, {"deadline_s": 3}))
    lab.mood(**mood)
    reason = failed(ctx, "health").reason
    assert "0 of 3 prompts were answered" in reason and words in reason


def test_n_of_m_allows_what_it_says(lab: Lab) -> None:
    ctx = started(lab, StepSpec("health", "health", 60, {"requests": 4, "need": 2}))
    lab.mood(fail_every=2)
    assert do(ctx, "health") == f"2 of 4 prompts were answered with tokens; {carries(ctx)}"


def test_case_17_a_service_that_died_after_its_start_fails_health(lab: Lab) -> None:
    ctx = started(lab, "health", flags=("--fake", '{"crash_after_s": 1.5}'))
    until(lambda: not of(ctx).active(), "it crashes")
    assert "the service is down: it ended with exit status 1" in failed(ctx, "health").reason


SETTLE = StepSpec("unlock", "unlock", 120, {"settle_s": 60})


def test_case_17_a_crash_after_5_s_fails_a_playbook_that_has_passed_every_gate_by_then(lab: Lab) -> None:
    ctx = started(lab, "health", SETTLE, flags=("--fake", '{"crash_after_s": 5}'))
    assert do(ctx, "health") == f"3 of 3 prompts were answered with tokens; {carries(ctx)}"
    assert "the service is down: it ended with exit status 1" in failed(ctx, "unlock").reason
    assert '"e":"commit"' not in journal_text(ctx).replace(": ", ":")


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ({"hung": True}, "does not generate any more"),
        ({"no_tokens": True}, "does not generate any more: no tokens came back"),
        ({"crash_after_requests": 1}, "the service is down: it ended with exit status 1"),
    ],
)
def test_the_last_look_asks_for_tokens(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, mood: dict[str, Any], words: str
) -> None:
    """It may have passed every gate and hang now; what died of the last prompt is called dead."""
    monkeypatch.setattr(unlock, "PROBE_S", 3.0)
    ctx = started(lab, "health", "unlock")
    do(ctx, "health")
    lab.mood(**mood)
    assert words in failed(ctx, "unlock").reason


def test_the_last_look_sees_a_service_that_somebody_restarted(lab: Lab) -> None:
    ctx = started(lab, "unlock")
    pid = ctx.results["start"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not of(ctx).active(), "it is gone")
    of(ctx).start(ctx)
    until(lambda: port_open(lab.port), "it is back")
    assert f"the service was restarted by somebody: process {pid} is" in failed(ctx, "unlock").reason


def test_a_verify_whose_service_was_restarted_meanwhile_is_no_pass(lab: Lab) -> None:
    first = lab.start_by_hand()
    ctx = lab.context(lab.service("adopted"), "health", "unlock", action="verify")
    do(ctx, "health")
    first.kill()
    first.wait()
    until(lambda: not of(ctx).active(), "it is gone")
    second = lab.start_by_hand()
    reason = failed(ctx, "unlock").reason
    assert reason == f"the service was restarted meanwhile: process {first.pid} is {second.pid} now"


def test_a_service_that_died_after_the_last_gate_is_not_recorded_as_the_release(lab: Lab) -> None:
    ctx = started(lab, "unlock", flags=("--fake", '{"crash_after_s": 1.5}'))
    until(lambda: not of(ctx).active(), "it crashes")
    assert "the service is down: it ended with exit status 1" in failed(ctx, "unlock").reason
    assert '"e":"commit"' not in journal_text(ctx).replace(": ", ":")


# ---- tokens -------------------------------------------------------------------------------------------


def with_baseline(lab: Lab, *gates: StepSpec | str, before: tuple[str, ...] = ()) -> Context:
    """A baseline of a server with flags `before`, then a restart with DDTREE."""
    baseline = StepSpec("baseline", "baseline", 60, {"tokens": 4, "max_new_tokens": 12, "bench": None})
    flags = before or ("--speculative-algorithm", "DFLASH")
    lab.start_by_hand(*flags)
    service = lab.service("adopted", launch=launch(lab, "--speculative-algorithm", "DDTREE"))
    ctx = lab.context(service, baseline, "stop", "start", *gates)
    prompts(ctx)
    of(ctx).record(ctx.backup_dir)
    do(ctx, "baseline")
    do(ctx, "stop")
    of(ctx).apply_launch(ctx)
    do(ctx, "start")
    return ctx


def test_equal_outputs_pass(lab: Lab) -> None:
    ctx = with_baseline(lab, "tokens")
    said = do(ctx, "tokens")
    assert said == "4 answers equal token for token (DDTREE against the old service)"
    sample = ctx.results["baseline"]["sample"]
    assert (sample["speculative"], sample["steps_per_token"], sample["accept_length"]) == ("DFLASH", 0.5, 2.0)
    assert [len(row) for row in sample["logprobs"]] == [12] * 4
    assert ctx.results["baseline"]["epsilon"] == 1e-4 and ctx.results["baseline"]["tie_share"] == 0.0


def test_a_divergence_is_named(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"wrong_tokens": 5}})
    ctx = with_baseline(lab, "tokens")
    reason = failed(ctx, "tokens").reason
    first = ctx.results["baseline"]["sample"]["outputs"][0][5]
    assert f"prompt 0, position 5: expected token {first} (log-prob -0.1000)" in reason
    assert "gap 2 (4 of 4 prompts differ)" in reason


def test_a_divergence_at_a_tie_counts_as_a_tie(lab: Lab) -> None:
    """The best two tokens are as likely as each other: within the share that was allowed it is no fault."""
    lab.mood(tie_at=5, when={"DDTREE": {"wrong_tokens": 5}})
    allowed = StepSpec("tokens", "tokens", 60, {"max_tie_share": 1.0})
    strict = StepSpec("strict", "tokens", 60, {})
    ctx = with_baseline(lab, allowed, strict)
    said = do(ctx, "tokens")
    assert "4 answers equal token for token, 4 up to a tie (log-prob gap under 0.0001)" in said
    assert ctx.results["tokens"]["agreement"]["ties"] == 4
    assert "4 of 4 prompts part at a tie, allowed are 0%" in failed(ctx, "strict").reason


def test_a_reference_without_logprobs_cannot_tell_a_tie(lab: Lab) -> None:
    """One prompt of four parts and nothing says how surely; three of four are no ties whatever the gaps."""
    lab.mood(refuse_logprobs=True, when={"DDTREE": {"wrong_tokens": 5}})
    ctx = with_baseline(lab, "tokens")
    assert "return_logprob is not supported" in ctx.results["baseline"]["sample"]["refused"]
    judged = failed(ctx, "tokens")
    assert judged.verdict == "fail" and "4 of 4 prompts differ: too many to be ties" in judged.reason
    assert "gave no log-probs" in judged.reason


@pytest.mark.parametrize("gate", ["tokens", "acceptance"])
def test_case_15_a_gate_of_a_rollout_that_has_nothing_to_compare_with_is_no_pass(lab: Lab, gate: str) -> None:
    judged = failed(started(lab, "baseline", gate), gate)
    assert judged.verdict == "inconclusive" and judged.reason.startswith("no baseline")


MEASURED = StepSpec("baseline", "baseline", 60, {"bench": None})
GATES = [
    StepSpec("tokens", "tokens", 60),
    StepSpec("acceptance", "acceptance", 60, {"against": None}),
    StepSpec("benchmark", "benchmark", 60, {"min_ratio": 0.9}),
]


@pytest.mark.parametrize("state", ["the service is not running", "the service runs but does not generate"])
def test_case_15_gates_that_could_not_judge_end_a_rollout_before_anything_is_stopped(
    lab: Lab, state: str
) -> None:
    if "runs" in state:
        lab.start_by_hand()
        lab.mood(no_tokens=True)
    service = lab.service("adopted")
    judged = failed(lab.context(service, MEASURED, *GATES), "baseline")
    assert judged.verdict == "inconclusive" and judged.reason.startswith(
        f"{state}, so tokens, acceptance, benchmark could not judge anything, and nothing is stopped"
    )
    # Held is what it asks for; or nothing asks for it.
    relaxed = StepSpec("benchmark", "benchmark", 60, {"min_ratio": None})
    against = StepSpec("acceptance", "acceptance", 60, {"against": {"model": "m"}})
    for ctx in (
        lab.context(service, MEASURED, *GATES, on_inconclusive="hold"),
        lab.context(service, MEASURED, relaxed, against),
        lab.context(service, MEASURED, "health"),
    ):
        with pytest.raises(StepSkipped, match=f"{state}: there is nothing to measure"):
            do(ctx, "baseline")


def test_too_few_tokens_are_a_failure(lab: Lab) -> None:
    lab.mood(when={"DDTREE": {"fewer_tokens": 1}})
    ctx = with_baseline(lab, "tokens")
    assert failed(ctx, "tokens").reason == "prompt 0: 11 of 12 tokens came back"


# ---- soak ---------------------------------------------------------------------------------------------

SOAK = StepSpec("soak", "soak", 120, {"requests": 40, "hang_after_s": 60, "max_new_tokens": 4})
IMPATIENT = StepSpec("soak", "soak", 120, {**SOAK.options, "hang_after_s": 3})


def test_a_soak_passes(lab: Lab) -> None:
    ctx = started(lab, SOAK)
    assert do(ctx, "soak").startswith("40 requests, none hung")


def test_a_server_that_hangs_after_n_requests_fails_the_soak(lab: Lab) -> None:
    ctx = started(lab, IMPATIENT, flags=("--fake", '{"hang_after_requests": 20}'))
    reason = failed(ctx, "soak").reason
    assert "of 40: " in reason and "no answer within 3 s" in reason


def test_a_server_that_dies_in_the_soak_fails_it(lab: Lab) -> None:
    ctx = started(lab, SOAK, flags=("--fake", '{"crash_after_requests": 20}'))
    assert "the service is down: it ended with exit status 1" in failed(ctx, "soak").reason


def test_a_rank_that_died_while_the_server_stays_up_fails_the_soak(lab: Lab) -> None:
    ctx = started(lab, SOAK)
    footprint = of(ctx).footprint()
    (child,) = [pid for pid, _ in footprint.members if pid != footprint.main]
    lab.mood(token_s=0.05)

    def kill() -> None:
        until(lambda: "of 40 requests" in journal_text(ctx), "the soak runs")
        os.kill(child, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert f"process {child} ended meanwhile" in failed(ctx, "soak").reason
    thread.join()
