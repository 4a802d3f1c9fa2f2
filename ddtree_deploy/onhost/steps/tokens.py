"""Greedy output of the new service equals the old one's, token for token, prompt by prompt."""

from __future__ import annotations

from .. import measure, serving, verdict
from ..context import Context, StepFailed, StepSkipped
from .baseline import PROMPTS


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    serving.require_serving(ctx, control)
    before = serving.result_of(ctx, "baseline")
    if not before:
        raise StepSkipped(
            "no baseline: the old service was not serving, so there is no output to compare with"
        )
    reference = before["sample"]["outputs"]
    name = next((s.options.get("prompts", PROMPTS) for s in ctx.plan.steps if s.kind == "baseline"), PROMPTS)
    texts = measure.load_prompts(ctx, str(name)).texts[: len(reference)]
    sample = measure.sample(ctx, control.endpoint, texts, int(before["max_new_tokens"]))
    ctx.result(sample=sample.to_dict(), speculative=sample.speculative)
    judged = verdict.tokens(reference, sample.outputs, int(ctx.option("max_ties", 0)))
    if judged.verdict != "pass":
        raise StepFailed(judged.reason, verdict=judged.verdict)
    return f"{judged.reason} ({sample.speculative or 'no speculation'})"
