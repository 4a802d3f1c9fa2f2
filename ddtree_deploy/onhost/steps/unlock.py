"""Decide: every gate has passed. A last look at the service, then record the release and tidy up; the lock
goes with the runner."""

from __future__ import annotations

import time

from ..context import Context, StepFailed
from ..judge import verdict
from ..recovery import commit
from ..service import dependents, serving
from ..service.base import ServiceControl
from ..service.ready import with_log
from ..service.sglang_api import HttpError, generate

PROBE_S = 60.0
ASKED = 4
_LOOK_S = 1.0


def do(ctx: Context) -> str:
    seen = _last_look(ctx)
    ctx.check()
    try:
        commit.forward(ctx)
    except commit.NotCommitted as error:
        raise StepFailed(str(error)) from None
    said = f"recorded as {ctx.plan.run}" if commit.changes_host(ctx.plan) else "nothing to record"
    return f"{said}; {seen}" if seen else said


def _last_look(ctx: Context) -> str:
    """The service is still the one that the gates saw, and it generates; not before `settle_s` after its
    start, because one that dies after some seconds has passed every gate by then. Returns what was seen.
    """
    started = serving.result_of(ctx, "start")
    if not started and ctx.plan.action != "verify":
        return ""
    # The wall clock may have been set since: never longer than `settle_s`.
    settle = float(ctx.option("settle_s", 0.0)) if started else 0.0
    control = serving.control_of(ctx)
    left = min(settle, settle - (time.time() - float(started.get("ready", 0.0))))
    if left > 0:
        ctx.progress(f"the last look at the service comes in {left:.0f} s")
    until = time.monotonic() + left
    while (left := until - time.monotonic()) > 0:
        serving.require_serving(ctx)
        ctx.pause(min(left, _LOOK_S))
    _require_tokens(ctx, control)
    serving.require_serving(ctx)
    record = serving.record_of(ctx)
    if started and record is not None and record.active and (lacking := dependents.down(control, record)):
        raise StepFailed(f"up before the stop, and not any more: {lacking}")
    return "the service still generates, in the same process"


def _require_tokens(ctx: Context, control: ServiceControl) -> None:
    prompt = f"ddtree-deploy {ctx.plan.run} looks once more:"
    seconds = min(PROBE_S, ctx.remaining())
    try:
        made = serving.call(ctx, lambda: generate(control.endpoint, prompt, ASKED, seconds=seconds))
    except HttpError as e:
        fault = str(e)
    else:
        fault = verdict.answer(made.tokens, made.completion_tokens, made.finish, ASKED, exact=False)
    if fault:
        runs, how = serving.settled(ctx, control)
        told = f"the service does not generate any more: {fault}" if runs else f"the service is down: {how}"
        raise StepFailed(with_log(control, told))
