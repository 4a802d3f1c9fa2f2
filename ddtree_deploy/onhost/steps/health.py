"""Prompts of our own, N of M, answered with tokens within a deadline. /health is not asked: it lies."""

from __future__ import annotations

import secrets
import time

from .. import serving, verdict
from ..context import Context, StepFailed
from ..http import HttpError, generate
from ..service.ready import check_listener, with_log


def do(ctx: Context) -> str:
    control = serving.control_of(ctx)
    serving.require_serving(ctx, control)
    requests, need = int(ctx.option("requests", 3)), int(ctx.option("need", 3))
    asked = int(ctx.option("max_new_tokens", 8))
    until = time.monotonic() + float(ctx.option("deadline_s", 120))
    check_listener(control)
    good, faults, seconds = 0, [], []
    for number in range(1, requests + 1):
        left = until - time.monotonic()
        if left <= 0:
            faults.append(f"prompt {number} was not asked: the deadline is over")
            break
        # Unique, so that no cache can answer instead of the model.
        prompt = f"ddtree-deploy {ctx.plan.run} {number} {secrets.token_hex(8)}: count from one to ten."
        try:
            made = serving.call(
                ctx,
                lambda p=prompt, s=left: generate(control.endpoint, p, asked, seconds=s),  # type: ignore[misc]
            )
            fault = verdict.answer(made.tokens, made.completion_tokens, made.finish, asked, exact=False)
        except HttpError as e:
            fault = str(e)
        if fault:
            faults.append(f"prompt {number}: {fault}")
            ctx.progress(faults[-1])
        else:
            good += 1
            seconds.append(round(made.seconds, 3))
            ctx.progress(
                f"prompt {number} of {requests}: {len(made.tokens)} tokens", done=number, total=requests
            )
        if len(faults) > requests - need:
            break
    ctx.result(good=good, requests=requests, seconds=seconds, faults=faults)
    judged = verdict.health(good, need, requests, faults)
    if judged.verdict != "pass":
        raise StepFailed(with_log(control, judged.reason), verdict=judged.verdict)
    return judged.reason
