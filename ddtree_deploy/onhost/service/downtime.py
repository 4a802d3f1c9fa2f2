"""Time without service, as the journal tells it: `down` before each stop, `up` with the first answer after.

By the wall clock, because a host may boot in between.
"""

from __future__ import annotations

import time
from typing import Any

from ..context import Context


def begin(ctx: Context) -> None:
    """Users are without service since its last answer; or since now, where this process has seen none."""
    if _since(ctx) is None:
        ctx.journal.write("down", sync=True, step=ctx.step.name, since=round(ctx.answered or time.time(), 3))


def over(ctx: Context) -> None:
    """It has just generated."""
    ctx.answered = time.time()
    since = _since(ctx)
    if since is not None:
        ctx.journal.write("up", step=ctx.step.name, down_s=round(max(0.0, ctx.answered - since), 3))


def total(events: list[dict[str, Any]]) -> float | None:
    """Seconds without service in a run; None where it was not stopped, or is still down."""
    told = [e for e in events if e["e"] in ("down", "up")]
    return round(sum(e.get("down_s", 0.0) for e in told), 3) if told and told[-1]["e"] == "up" else None


def _since(ctx: Context) -> float | None:
    told = [e for e in ctx.journal.events if e["e"] in ("down", "up")]
    return float(told[-1]["since"]) if told and told[-1]["e"] == "down" else None
