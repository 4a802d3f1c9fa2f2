"""Every request completes; verify steps per token and speed are not worse than the baseline allows."""

from __future__ import annotations

from .. import measure, serving, verdict
from ..context import Context, StepFailed, StepSkipped
from .baseline import PROMPTS


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    serving.require_serving(ctx, control)
    before = serving.result_of(ctx, "baseline")
    spec = next((s for s in ctx.plan.steps if s.kind == "baseline"), None)
    options = dict(spec.options) if spec else dict(ctx.step.options)
    prompts = measure.load_prompts(ctx, str(options.get("prompts", PROMPTS)))
    length = int(options.get("max_new_tokens", 32))
    texts = prompts.texts[: int(options.get("tokens", 8))]
    sample = measure.sample(ctx, control.endpoint, texts, length)
    bench = measure.Bench.from_options(options.get("bench") or {}, prompts)
    after = measure.client(ctx, control, prompts, bench, "after")
    rounds = after["rounds"]
    judged = [verdict.rounds_complete(rounds, bench.num_prompts, bench.output_len)]
    seen = f"{measure.shown(after['figures'])}, accept length {_number(sample.accept_length())}"
    compared = bool(before and before.get("bench"))
    if compared:
        old = before["bench"]["figures"]["output_tokens_per_s"]
        judged += [
            verdict.rounds_complete(before["bench"]["rounds"], bench.num_prompts, bench.output_len),
            verdict.speed_ratio(
                old, after["figures"]["output_tokens_per_s"], float(ctx.option("min_speed_ratio", 0.5))
            ),
        ]
    if before:
        judged.append(
            verdict.steps_ratio(
                before["sample"]["steps_per_token"],
                sample.steps_per_token(),
                float(ctx.option("max_steps_ratio", 1.0)),
            )
        )
    ctx.result(
        sample=sample.to_dict(),
        after=after,
        before={"figures": before["bench"]["figures"] if compared else None,
                "steps_per_token": before["sample"]["steps_per_token"] if before else None,
                "accept_length": before["sample"]["accept_length"] if before else None},
        judged=[list(j) for j in judged],
    )  # fmt: skip
    whole = verdict.worst(judged)
    if whole.verdict != "pass":
        raise StepFailed(f"{whole.reason} ({seen})", verdict=whole.verdict)
    if not before:
        raise StepSkipped(f"no baseline to compare with: {whole.reason}; {seen}")
    return f"{whole.reason}; {seen}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
