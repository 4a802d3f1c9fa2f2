"""The tree accepts as much as it should: against the service before, and against figures measured elsewhere.

Counters of fixed prompts have almost no noise, so this gate is sharp where a speed gate is blunt.
"""

from __future__ import annotations

from typing import Any

from ..context import Context, StepFailed
from ..judge import expected
from ..judge.agreement import judge_acceptance
from ..judge.verdict import Verdict, worst_of
from ..measure import greedy, identity, reference
from ..service import serving
from ..service.base import ServiceControl


def do(ctx: Context) -> str:
    control = serving.require_serving(ctx)
    wanted = reference.find(ctx, control)
    table = ctx.option("against", None)
    if wanted is None and table is None:
        serving.skip(ctx, "no baseline to compare with, and no baseline file is named under `against`")
    judged: list[Verdict] = []
    figures: dict[str, Any] = {}
    if wanted is not None:
        sample = reference.sample_of(ctx, control, wanted)
        figures["sample"] = sample
        judged += against_reference(wanted, sample, float(ctx.option("max_steps_ratio", 1.0)))
    if table is not None:
        found = _against_table(ctx, control, table)
        figures["whole"] = found.figures.pop("sample", None)
        judged.append(found)
    whole = worst_of(judged)
    ctx.result(**figures, acceptance=whole.figures)
    if whole.verdict != "pass":
        raise StepFailed(whole.reason, verdict=whole.verdict)
    return whole.reason


def against_reference(
    wanted: reference.Reference, sample: dict[str, Any], max_steps_ratio: float
) -> list[Verdict]:
    """Steps per token, accept length against the reference's. Unknown counters: inconclusive."""
    against = f"{wanted.speculative or 'no speculation'} of {wanted.name}"
    steps, length = sample["steps_per_token"], sample["accept_length"]
    if None in (steps, length, wanted.steps_per_token, wanted.accept_length):
        which = wanted.name if wanted.steps_per_token is None else "the service now"
        text = f"verify steps per token are unknown: no spec_verify_ct in the answers of {which}"
        return [Verdict("inconclusive", text, {})]
    assert wanted.steps_per_token is not None and wanted.accept_length is not None
    return [
        # Equal counts mean equal: the 1e-9 covers the rounding of the division.
        judge_acceptance(
            steps,
            wanted.steps_per_token,
            max_steps_ratio - 1.0 + 1e-9,
            what="verify steps per token",
            against=against,
            higher_is_better=False,
        ),
        judge_acceptance(
            length,
            wanted.accept_length,
            1.0 - 1.0 / max_steps_ratio + 1e-9,
            what="accept length",
            against=against,
        ),
    ]


def _against_table(ctx: Context, control: ServiceControl, table: dict[str, Any]) -> Verdict:
    """All prompts of the data set, each to its own end, against the figures of a baseline file."""
    prompts = greedy.load_prompts(ctx, reference.PROMPTS)
    _, info = identity.of_server(ctx, control.endpoint)
    length = int(ctx.option("max_new_tokens", 512))
    sample = greedy.sample(ctx, control.endpoint, prompts, length, to_length=False)
    value, steps = sample.accept_length(), sample.steps_per_token()
    if value is None:
        return Verdict("inconclusive", "accept length is unknown: no spec_verify_ct in the answers", {})
    measured = expected.Measured(
        model=str(info.get("model_path") or ""),
        draft=str(info.get("speculative_draft_model_path") or ""),
        dataset=str(ctx.option("dataset", "")),
        budget=expected.budget_of(info),
        accept_length=value,
        steps_per_token=steps,
    )
    judged = expected.compare(measured, table, float(ctx.option("tolerance", expected.TOLERANCE)))
    return Verdict(judged.verdict, judged.reason, {**judged.figures, "sample": sample.to_dict()})
