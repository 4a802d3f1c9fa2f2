"""Decide: every gate has passed. Record the release and tidy up; the lock goes with the runner."""

from __future__ import annotations

from .. import commit
from ..context import Context, StepFailed


def do(ctx: Context) -> str:
    try:
        commit.forward(ctx)
    except commit.NotCommitted as error:
        raise StepFailed(str(error)) from None
    return f"recorded as {ctx.plan.run}" if commit.changes_host(ctx.plan) else "nothing to record"
