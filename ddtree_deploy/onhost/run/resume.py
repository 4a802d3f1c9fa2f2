"""`recover-run`: a dead run goes on to its end, forward or back, by its own runner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..context import Context
from ..programs import process
from ..recovery import commit, deferral
from ..state import layout
from ..state.journal import read
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
    events, _ = read(ctx.journal.path)
    with Interruption(ctx, run_dir):
        ctx.uninterruptible = True
        ctx.journal.tolerant = True
        process.kill_marked(f"{plan.run}/")
        ctx.lock = SiteLock.inherited(run_dir.parent.parent, lock_fd)
        ctx.journal.write("recover", sync=True, pid=os.getpid(), boot_id=layout.boot_id())
        ctx.results = {e["step"]: e["data"] for e in events if e["e"] == "result"}
        code = runner.settle(ctx, _outcome(ctx, events), recovered=True)
    ctx.journal.close()
    alive.release()
    return code


def _outcome(ctx: Context, events: list[dict[str, object]]) -> runner.Outcome:
    """Forward if the run had decided so; else what it had already judged, or that it died."""
    if commit.decided(ctx):
        return runner.Outcome()
    started = [str(e["step"]) for e in events if e["e"] == "start"]
    step = started[-1] if started else ""
    if deferral.cut_short(events):
        return runner.Outcome("died", step, f"the host went down at step {step}")
    for event in events:
        if event["e"] == "verdict" and event["verdict"] not in ("pass", "skipped"):
            return runner.Outcome(str(event["verdict"]), str(event["step"]), str(event["reason"]))
    where = f"at step {step}" if step else "before its first step"
    return runner.Outcome("died", step, f"the runner died {where}")
