"""`recover-run`: a dead run goes on to its end, forward or back, by its own runner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..context import Context
from ..judge.verdict import Verdict
from ..programs import process
from ..recovery import commit, deferral
from ..state import layout
from ..state.lock import FileLock, SiteLock
from . import runner
from .interruption import Interruption


def run_recovery(run_dir: Path, lock_fd: int) -> int:
    """`recover-run`: in the run's own zipapp, with the venv's lock inherited. Returns the exit code."""
    os.umask(0o022)
    alive = FileLock(run_dir / layout.ALIVE)
    if not alive.acquire():
        print("this run has a runner", file=sys.stderr)
        return 5
    plan = runner.load_plan(run_dir)
    ctx = runner.open_context(run_dir, plan)
    with Interruption(ctx, run_dir):
        ctx.uninterruptible = ctx.recovered = True
        ctx.journal.tolerant = True
        process.kill_marked(f"{plan.run}/")
        ctx.lock = SiteLock.inherited(run_dir.parent.parent, lock_fd)
        ctx.journal.write("recover", sync=True, pid=os.getpid(), boot_id=layout.boot_id())
        ctx.results = {e["step"]: e["data"] for e in ctx.journal.events if e["e"] == "result"}
        code = runner.settle(ctx, _judged(ctx))
    ctx.journal.close()
    alive.release()
    return code


def _judged(ctx: Context) -> Verdict:
    """Forward if the run had decided so; else what it had already judged, or that it died."""
    if commit.decided(ctx):
        return Verdict("pass")
    events = ctx.journal.events
    step = next((str(e["step"]) for e in reversed(events) if e["e"] == "start"), "")
    where = f"at step {step}" if step else "before its first step"
    if deferral.cut_short(events):
        return Verdict("died", f"the host went down at step {step}", step=step)
    for event in events:
        if event["e"] == "verdict" and event["verdict"] not in ("pass", "skipped"):
            return Verdict(event["verdict"], event["reason"], step=event["step"])
    return Verdict("died", f"the runner died {where}", step=step)
