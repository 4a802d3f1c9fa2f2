"""A person has looked at a held release: from now on it is a good one."""

from __future__ import annotations

from ..context import Context, StepFailed
from ..state import releases


def do(ctx: Context) -> str:
    try:
        releases.confirm(ctx.state_dir, ctx.plan.back_to, ctx.plan.who)
    except LookupError as error:
        raise StepFailed(str(error)) from None
    return f"{ctx.plan.back_to} is good, by {ctx.plan.who}"
