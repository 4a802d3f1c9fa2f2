"""The service as it is, before anything is stopped: greedy outputs, verify steps per token, speed."""

from __future__ import annotations

from typing import Any

from .. import measure, serving
from ..context import Context, StepFailed, StepSkipped

PROMPTS = "attachments/prompts.jsonl"


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    if not control.active():
        raise StepSkipped("the service is not running: there is nothing to compare with later")
    if not control.generates():
        raise StepSkipped("the service runs but does not generate: there is nothing to compare with later")
    prompts = measure.load_prompts(ctx, str(ctx.option("prompts", PROMPTS)))
    texts = prompts.texts[: int(ctx.option("tokens", 8))]
    length = int(ctx.option("max_new_tokens", 32))
    sample = measure.sample(ctx, control.endpoint, texts, length)
    again = measure.sample(ctx, control.endpoint, texts[:1], length)
    if again.outputs[0] != sample.outputs[0]:
        raise StepFailed(
            "the old service does not repeat its own greedy output: there is nothing to compare tokens with",
            verdict="inconclusive",
        )
    steps = sample.steps_per_token()
    text = f"{len(texts)} greedy outputs of {sample.speculative or 'no speculation'}"
    text += f", {steps:.4f} verify steps per token" if steps is not None else ", verify steps unknown"
    data: dict[str, Any] = {
        "prompts": prompts.path.name,
        "max_new_tokens": length,
        "sample": sample.to_dict(),
        "bench": None,
    }
    options = ctx.option("bench", {})
    if options is not None:
        bench = measure.Bench.from_options(options, prompts)
        before = measure.client(ctx, control, prompts, bench, "before")
        data["bench"] = before
        text += f"; {measure.shown(before['figures'])}"
    ctx.result(**data)
    return text
