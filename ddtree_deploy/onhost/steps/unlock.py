"""Decide: every gate has passed. Record the release and tidy up; the lock goes with the runner."""

from __future__ import annotations

from .. import commit, serving
from ..context import Context, StepFailed


def do(ctx: Context) -> str:
    if serving.result_of(ctx, "start"):  # a service that died since the last gate must not become the release
        serving.require_serving(ctx, serving.control_of(ctx))
    ctx.check()
    try:
        commit.forward(ctx)
    except commit.NotCommitted as error:
        raise StepFailed(str(error)) from None
    return f"recorded as {ctx.plan.run}" if commit.changes_host(ctx.plan) else "nothing to record"
