"""Take the venv's lock; first put back what a run that died left half-done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..context import Context, StepFailed
from ..recovery import deferral, orphans
from ..state import holder, layout
from ..state.durable import write_json
from ..state.lock import Held, SiteLock
from ..wire.protocol import to_dict


def do(ctx: Context) -> str:
    lock = SiteLock(ctx.state_dir)
    try:
        lock.acquire(ctx.plan.run, ctx.plan.who, ctx.plan.action, layout.venv_folders(to_dict(ctx.plan)))
    except Held as held:
        raise StepFailed(describe(holder.of(held)), exit_code=5) from None
    ctx.lock = lock
    if not (ctx.state_dir / "site.json").exists():
        write_json(ctx.state_dir / "site.json", {"site": ctx.plan.site})
    recovered = []
    for run in orphans.orphans(ctx.state_dir, but=ctx.plan.run):
        ctx.progress(f"run {run} ended without a verdict: recovering it first")
        ctx.deadline = time.monotonic() + orphans.LIMIT_S
        run_dir = ctx.state_dir / "runs" / run
        code, reason = orphans.by_its_own_runner(run_dir, lock.fd, _show(ctx), lock.folder_fds)
        if code in (3, deferral.EXIT):
            raise StepFailed(f"run {run} could not be recovered: {reason}", exit_code=code)
        recovered.append(f"recovered run {run}: {reason}")
    ctx.journal.write("locked", sync=True, step=ctx.step.name)
    unknown = [f"{lock.unknown}: a run with another state folder is not seen"] if lock.unknown else []
    return "; ".join(["ours", *unknown, *recovered])


def _show(ctx: Context) -> Callable[[dict[str, Any]], None]:
    def show(event: dict[str, Any]) -> None:
        if text := orphans.in_words(event):
            ctx.progress(text)

    return show


def describe(owner: dict[str, object]) -> str:
    """Who holds the lock, since when, at which step."""
    if not owner:
        return "locked by another run, which has not said who it is"
    state = f", whose state is in {owner['state_dir']}" if owner.get("state_dir") else ""
    what = f"{owner.get('action', 'run')} {owner.get('run', '?')}, since {owner.get('since', '?')}"
    at = f"now at {owner.get('step', '?')} (pid {owner.get('pid', '?')})"
    return f"locked by {owner.get('who', '?')}, {what}, {at}{state}"
