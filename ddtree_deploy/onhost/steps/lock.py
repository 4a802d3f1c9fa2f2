"""Take the venv's lock; first put back what a run that died left half-done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..context import Context, StepFailed
from ..recovery import deferral, orphans
from ..state.durable import write_json
from ..state.lock import Held, SiteLock


def do(ctx: Context) -> str:
    lock = SiteLock(ctx.state_dir)
    try:
        lock.acquire(ctx.plan.run, ctx.plan.who, ctx.plan.action)
    except Held as held:
        raise StepFailed(describe(held.owner), exit_code=5) from None
    ctx.lock = lock
    if not (ctx.state_dir / "site.json").exists():
        write_json(ctx.state_dir / "site.json", {"site": ctx.plan.site})
    recovered = []
    for run in orphans.orphans(ctx.state_dir, but=ctx.plan.run):
        ctx.progress(f"run {run} ended without a verdict: recovering it first")
        ctx.deadline = time.monotonic() + orphans.LIMIT_S
        code, reason = orphans.by_its_own_runner(ctx.state_dir / "runs" / run, lock.fd, _show(ctx))
        if code in (3, deferral.EXIT):
            raise StepFailed(f"run {run} could not be recovered: {reason}", exit_code=code)
        recovered.append(f"recovered run {run}: {reason}")
    ctx.journal.write("locked", sync=True, step=ctx.step.name)
    return "; ".join(["ours", *recovered])


def _show(ctx: Context) -> Callable[[dict[str, Any]], None]:
    def show(event: dict[str, Any]) -> None:
        if text := orphans.in_words(event):
            ctx.progress(text)

    return show


def describe(owner: dict[str, object]) -> str:
    """Who holds the lock, since when, at which step."""
    if not owner:
        return "locked by another run, which has not said who it is"
    return (
        f"locked by {owner.get('who', '?')}, {owner.get('action', 'run')} {owner.get('run', '?')}, "
        f"since {owner.get('since', '?')}, now at {owner.get('step', '?')} (pid {owner.get('pid', '?')})"
    )
