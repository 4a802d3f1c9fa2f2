"""Greedy output of the service is the reference's, token for token, up to ties of the reference."""

from __future__ import annotations

from ..context import Context, StepFailed
from ..judge.agreement import judge_tokens
from ..measure import reference
from ..service import serving


def do(ctx: Context) -> str:
    control = serving.require_serving(ctx)
    wanted = reference.find(ctx, control)
    if wanted is None:
        serving.skip(
            ctx,
            f"no reference: ddtree-deploy golden record {ctx.plan.host}, while a server runs that is right"
            if ctx.plan.action == "verify"
            else "no baseline: the old service was not serving, so there is no output to compare with",
        )
    epsilon, share = ctx.option("epsilon", None), ctx.option("max_tie_share", None)
    sample = reference.measure(ctx, control, wanted)
    judged = judge_tokens(
        wanted.continuations,
        sample.continuations(),
        epsilon=wanted.epsilon if epsilon is None else float(epsilon),
        max_tie_share=wanted.tie_share if share is None else float(share),
    )
    ctx.result(
        sample=sample.to_dict(),
        speculative=sample.speculative,
        reference=wanted.name,
        agreement=judged.figures,
    )
    who = f"{sample.speculative or 'no speculation'} against {wanted.name}"
    if judged.verdict != "pass":
        why = f"; {wanted.name} gave no log-probs: {wanted.refused}" if wanted.refused else ""
        raise StepFailed(f"{judged.reason} ({who}){why}", verdict=judged.verdict)
    return f"{judged.reason} ({who})"
