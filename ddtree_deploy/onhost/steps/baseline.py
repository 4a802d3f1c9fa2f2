"""The service as it is, before anything is stopped: greedy outputs, verify steps per token, speed.

And whether the benchmark gate will be able to tell anything on this host, while that still costs nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from ..context import Context, StepFailed
from ..judge import agreement, speed, stats
from ..measure import bench_rounds, calibration, greedy, identity, reference
from ..measure.greedy import Sample
from ..service import serving
from ..service.base import ServiceControl
from ..wire.protocol import StepSpec


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    if not control.active():
        _nothing(ctx, "the service is not running")
    if not control.generates():
        _nothing(ctx, "the service runs but does not generate")
    prompts = greedy.load_prompts(ctx, str(ctx.option("prompts", reference.PROMPTS)))
    asked = reference.first(prompts, int(ctx.option("tokens", 8)))
    length = int(ctx.option("max_new_tokens", 32))
    here, _ = identity.of_server(ctx, control.endpoint)
    sample = greedy.sample(ctx, control.endpoint, asked, length, logprobs=True)
    epsilon, share = _against_itself(ctx, control, asked, length, sample)
    steps = sample.steps_per_token()
    text = f"{len(asked.texts)} greedy outputs of {sample.speculative or 'no speculation'}"
    text += " without log-probs" if sample.refused else ""
    text += f", {steps:.4f} verify steps per token" if steps is not None else ", verify steps unknown"
    data: dict[str, Any] = {
        "prompts": prompts.path.name,
        "texts": asked.texts,
        "max_new_tokens": length,
        "sample": sample.to_dict(),
        "epsilon": epsilon,
        "tie_share": share,
        "identity": here,
        "bench": None,
    }
    options = ctx.option("bench", {})
    if options is not None:
        bench = bench_rounds.Bench.from_options(options, prompts)
        judged = judged_ratio(ctx) is not None
        data["bench"] = bench_rounds.client(ctx, control, prompts, bench, "before", calibrated=judged)
        text += f"; {bench_rounds.shown(data['bench']['figures'])}"
    problem = _resolution(ctx, data)
    ctx.result(**data)
    if problem:
        raise StepFailed(f"{problem}; {text}", verdict="inconclusive")
    said = data.get("resolution")
    return f"{text}; {said['text']}" if said else text


def _nothing(ctx: Context, why: str) -> NoReturn:
    """There is no service to measure. Where a gate could not judge without it, the run ends here, while that
    costs nothing, unless what cannot be decided is to be held. Raises StepSkipped or StepFailed.
    """
    blind = (
        [s.name for s in ctx.plan.steps if _needs_baseline(ctx, s)] if ctx.plan.action == "rollout" else []
    )
    if not blind or ctx.plan.on_inconclusive == "hold":
        serving.skip(ctx, f"{why}: there is nothing to measure or to compare with later")
    raise StepFailed(
        f"{why}, so {', '.join(blind)} could not judge anything, and nothing is stopped (start the service; "
        "or tokens: {golden: FILE}, acceptance: {against: FILE}, benchmark: {min_ratio: null}; or a playbook "
        "without them; or on_inconclusive: hold)",
        verdict="inconclusive",
    )


def _needs_baseline(ctx: Context, spec: StepSpec) -> bool:
    """This gate has nothing else to compare with."""
    if spec.kind == "benchmark":
        return speed.min_ratio_of(spec.options) is not None
    if spec.kind == "acceptance" and spec.options.get("against") is not None:
        return False
    return spec.kind in ("tokens", "acceptance") and not reference.has_golden(ctx)


def _against_itself(
    ctx: Context, control: ServiceControl, asked: greedy.Prompts, length: int, sample: Sample
) -> tuple[float, float]:
    """(epsilon, tie share) against itself: asked again, and in batches, which round otherwise."""
    again = [
        greedy.sample(ctx, control.endpoint, asked, length),
        greedy.sample(ctx, control.endpoint, asked, length, together=True),
    ]
    try:
        return agreement.self_agreement([s.continuations() for s in (sample, *again)])
    except ValueError as e:
        raise StepFailed(
            "the service does not repeat its own greedy output: there is nothing to compare tokens with "
            f"({e})",
            verdict="inconclusive",
        ) from e


def _resolution(ctx: Context, data: dict[str, Any]) -> str:
    """Add to `data` whether `min_ratio` of the benchmark gate can be resolved here.

    Returns why the run should end now: where it cannot be, and what cannot be decided is rolled back anyway.
    """
    gate, min_ratio = benchmark_of(ctx), judged_ratio(ctx)
    if data["bench"] is None or gate is None or min_ratio is None:
        return ""
    assumed = gate.options.get("assume_restart_sd")
    known = calibration.load(ctx.state_dir, data["identity"], assumed)
    data["restart"] = dataclasses.asdict(known)
    rounds = [r for r in bench_rounds.judged_rounds(data["bench"]) if not r.warmup]
    void = next((r.void for r in rounds if r.void), "")
    try:
        if void or len(rounds) < 2:
            raise stats.TooFewRounds(void or "one round")
        expected = float(gate.options.get("expected_ratio", 1.0))
        speeds = [r.throughput for r in rounds]
        said = dict(stats.resolution(speeds, min_ratio, known.spread, expected_ratio=expected).__dict__)
        if known.spread is None:
            said |= {"resolvable": False, "text": f"{said['text']}; not calibrated: {known.source}"}
    except stats.TooFewRounds as e:
        said = {"resolvable": False, "text": f"speed cannot be judged: {e}"}
    data["resolution"] = said
    ctx.progress(said["text"])
    if said["resolvable"] or ctx.plan.action != "rollout" or ctx.plan.on_inconclusive == "hold":
        return ""
    return (
        f"the benchmark gate could not pass, so nothing is stopped: {said['text']} "
        f"(ddtree-deploy calibrate {ctx.plan.host}, or in the playbook: assume_restart_sd, a lower "
        "min_ratio, more rounds, on_inconclusive: hold)"
    )


def benchmark_of(ctx: Context) -> StepSpec | None:
    """The benchmark step that will judge against this baseline."""
    return next((s for s in ctx.plan.steps if s.kind == "benchmark"), None)


def judged_ratio(ctx: Context) -> float | None:
    """The min_ratio that the benchmark step will judge by; None where nobody judges the speed."""
    gate = benchmark_of(ctx)
    return speed.min_ratio_of(gate.options) if gate else None
