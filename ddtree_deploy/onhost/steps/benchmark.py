"""Every request completes, and the service is as fast as the baseline allows: `judge.speed`."""

from __future__ import annotations

from typing import Any

from ..context import Context, StepFailed
from ..judge import speed, verdict
from ..measure import bench_rounds, calibration, greedy, reference
from ..service import serving
from ..service.base import ServiceControl


def do(ctx: Context) -> str:
    control = serving.require_serving(ctx)
    before = serving.result_of(ctx, "baseline").get("bench")
    min_ratio = speed.min_ratio_of(ctx.step.options)
    after = _rounds(ctx, control, before, calibrated=before is not None and min_ratio is not None)
    bench = after["bench"]
    lost = verdict.rounds_complete(
        after["rounds"], int(bench["num_prompts"]), int(bench["output_len"]), int(after["repeats"])
    )
    seen = bench_rounds.shown(after["figures"])
    figures: dict[str, Any] = {
        "after": after,
        "before": {"figures": before["figures"]} if before else None,
    }
    if before is None or min_ratio is None:
        ctx.result(**figures, speed=None)
        if lost.verdict != "pass":
            raise StepFailed(f"{lost.reason} ({seen})", verdict=lost.verdict)
        why = "speed is not judged" if min_ratio is None else "there is no baseline to compare the speed with"
        text = f"{lost.reason}; {seen}; {why}"
        if before is None and min_ratio is not None and ctx.plan.action == "rollout":
            raise StepFailed(text, verdict="inconclusive")
        return text
    judged = speed.judge(_measurements(ctx, before, after, min_ratio))
    ctx.result(**figures, speed=judged.figures)
    if lost.verdict == "fail" and judged.verdict == "fail":  # the same loss, with the client's own error
        raise StepFailed(f"{lost.reason} ({seen})")
    if judged.verdict != "pass":
        raise StepFailed(f"{judged.reason} ({seen})", verdict=judged.verdict)
    return f"{judged.reason}; {lost.reason}; {bench_rounds.shown(before['figures'])} before, {seen} now"


def _rounds(
    ctx: Context, control: ServiceControl, before: dict[str, Any] | None, *, calibrated: bool
) -> dict[str, Any]:
    """The rounds after, exactly as those before were run."""
    spec = next((s for s in ctx.plan.steps if s.kind == "baseline"), None)
    options = dict(spec.options) if spec else dict(ctx.step.options)
    prompts = greedy.load_prompts(ctx, str(options.get("prompts", reference.PROMPTS)))
    bench = bench_rounds.Bench.from_options(
        before["bench"] if before else options.get("bench") or {}, prompts
    )
    repeats = int(before["repeats"]) if before else 0
    return bench_rounds.client(ctx, control, prompts, bench, "after", repeats, calibrated=calibrated)


def _measurements(
    ctx: Context, before: dict[str, Any], after: dict[str, Any], min_ratio: float
) -> speed.Measurements:
    known = calibration.Known(**serving.result_of(ctx, "baseline")["restart"])
    return speed.Measurements(
        before=bench_rounds.judged_rounds(before),
        after=bench_rounds.judged_rounds(after),
        min_ratio=min_ratio,
        restart=known.spread,
        assumed=known.assumed,
        loop_before=before["loop"],
        loop_after=after["loop"],
        loop_limit=float(ctx.option("host_change", 0.10)),
        wanted_rounds=int(before["bench"]["rounds"]),
    )
