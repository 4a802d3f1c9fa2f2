"""Executes a plan: each step one verdict, stop at the first that is not a pass, undo, one `end` event."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import steps
from ..context import Context, Interrupt, StepFailed, StepSkipped
from ..judge.verdict import Verdict
from ..programs import bounded
from ..recovery import boot_guard, commit, deferral
from ..service import downtime
from ..service.base import ServiceError
from ..staging.stage import remove_stage
from ..state import durable, layout, line, releases
from ..state.journal import Journal
from ..state.lock import FileLock
from ..wire.kinds import TABLE
from ..wire.protocol import (
    STATE_APPLIED,
    STATE_BACK,
    STATE_BEFORE,
    STATE_BROKEN,
    STATE_HELD,
    STATE_INSTALLED,
    STATE_NEW,
    STATE_UNTOUCHED,
    VERDICTS,
    Plan,
    ProtocolError,
    StepSpec,
    from_dict,
)
from .interruption import Interruption
from .undo import intents_by_step, log_traceback, one_line, undo_all

EXIT = {"pass": 0, "fail": 1, "died": 1, "inconclusive": 7, "interrupted": 130}


def load_plan(run_dir: Path) -> Plan:
    """The plan of a run folder. Raises ProtocolError when it is missing or does not fit this runner."""
    data = layout.read_json(run_dir / layout.PLAN)
    if data is None:
        raise ProtocolError(f"{run_dir / layout.PLAN} is missing or torn")
    plan: Plan = from_dict(Plan, data)
    return plan


def open_context(run_dir: Path, plan: Plan) -> Context:
    """A context whose journal masks the plan's secrets."""
    journal = Journal(run_dir / layout.JOURNAL)
    journal.secrets = sorted((s for s in plan.secrets.values() if len(s) >= 4), key=len, reverse=True)
    (run_dir / "logs").mkdir(mode=0o700, exist_ok=True)
    return Context(plan, run_dir, journal, StepSpec("", "lock", 0.0))


def run(run_dir: Path) -> int:
    """The detached runner. Returns the exit code, which is also in the `end` event."""
    os.umask(0o022)
    alive = FileLock(run_dir / layout.ALIVE)
    if not alive.acquire():
        print("this run has a runner already", file=sys.stderr)
        return 5
    plan = load_plan(run_dir)
    ctx = open_context(run_dir, plan)
    with Interruption(ctx, run_dir):  # first: the pid in the `run` event invites an interrupt
        ctx.journal.write(
            "run",
            sync=True,
            run=plan.run,
            action=plan.action,
            host=plan.host,
            who=plan.who,
            payload=plan.payload_name,
            version=plan.payload_version,
            variant=plan.variant,
            release=plan.release,
            steps=[s.name for s in plan.steps],
            pid=os.getpid(),
            boot_id=layout.boot_id(),
        )
        code = settle(ctx, execute(ctx))
    if ctx.lock is not None:
        ctx.lock.release()
    ctx.journal.close()
    alive.release()
    return code


def execute(ctx: Context) -> Verdict:
    """Run the steps in order until one is not a pass. Never raises for what a step does."""
    verdicts: dict[str, str] = {}
    for spec in ctx.plan.steps:
        judged = _step(ctx, spec)
        verdicts[spec.name] = judged.verdict
        if judged.verdict == "inconclusive" and _may_hold(ctx, spec):
            # The gates after it are still asked: what fails one of them is not held but undone.
            ctx.held = ctx.held or f"{spec.name}: {judged.reason}"
            verdicts[spec.name] = "held"
        elif judged.verdict not in ("pass", "skipped"):
            return judged
    missing = [s.name for s in ctx.plan.steps if verdicts.get(s.name) not in ("pass", "skipped", "held")]
    if missing or not verdicts:  # a gate that never ran has not passed
        return Verdict("fail", "it never ran", step=(missing or [""])[0])
    return Verdict("pass")


def _may_hold(ctx: Context, spec: StepSpec) -> bool:
    """A gate on the new release may be left undecided where the plan says so; nothing before it may."""
    return ctx.plan.action == "rollout" and ctx.plan.on_inconclusive == "hold" and TABLE[spec.kind].gate


def _step(ctx: Context, spec: StepSpec) -> Verdict:
    ctx.step = spec
    start = time.monotonic()
    ctx.deadline = start + spec.timeout_s
    verdict, code = "fail", 0
    try:
        ctx.journal.write("start", step=spec.name, kind=spec.kind)
        if ctx.lock is not None:
            ctx.lock.at_step(spec.name)
        if ctx.stop_event.is_set():
            raise Interrupt
        with bounded.watched(ctx.check):
            reason = steps.load(spec.kind).do(ctx)
        if spec.kind != "unlock":  # what was decided there stands
            ctx.check_time()
        verdict = "pass"
    except StepSkipped as skipped:
        verdict, reason = "skipped", str(skipped)
    except StepFailed as failed:
        verdict, reason, code = failed.verdict, failed.reason, failed.exit_code
    except ServiceError as error:
        reason = str(error)
    except Interrupt:
        verdict, reason = "interrupted", ctx.interrupted_by or "interrupted"
    except Exception as error:
        reason = ("" if isinstance(error, OSError) else "unexpected ") + one_line(error)
        log_traceback()
    reason = " ".join(str(reason).split())
    with contextlib.suppress(OSError):  # a full disk: the verdict stands, also unwritten
        ctx.journal.write(
            "verdict",
            sync=True,
            step=spec.name,
            verdict="fail" if verdict == "interrupted" else verdict,
            reason=reason,
            seconds=round(time.monotonic() - start, 3),
        )
    return Verdict(verdict, reason, step=spec.name, exit_code=code)


def settle(ctx: Context, judged: Verdict) -> int:
    """Commit what passed, or put the host back; write the `end` event. Returns the exit code.

    On a host that goes down: 8, and no `end` (see `deferral`).
    """
    with contextlib.suppress(OSError):
        (ctx.run_dir / layout.RESERVE).unlink(missing_ok=True)
    if judged.verdict == "pass" or commit.decided(ctx):  # a decision stands, whatever came after it
        try:
            if not ctx.recorded:
                commit.forward(ctx)
        except commit.NotCommitted as error:
            judged = Verdict("fail", str(error), step="unlock")
        except OSError as error:
            log_traceback()
            reason = f"the release is in place but could not be recorded: {one_line(error)}"
            return _broken(ctx, Verdict("fail", reason, step="unlock"))
        else:
            held = commit.held(ctx)
            if not held:
                return _end(ctx, Verdict("pass", _passed(ctx)), _state_of_pass(ctx))
            step, _, reason = held.partition(": ")
            return _end(ctx, Verdict("inconclusive", f"{reason}; {_passed(ctx)}", step=step), STATE_HELD)
    intents = intents_by_step(ctx.journal.events)
    if intents and deferral.needed(ctx):
        return deferral.note(ctx, judged.reason)
    failures = undo_all(ctx, intents) or _unguard(ctx)
    if failures:
        reason = f"{judged.reason}; rollback incomplete: {'; '.join(failures)}"
        return _broken(ctx, replace(judged, reason=reason))
    _clean(ctx, judged)
    more, state = "", STATE_UNTOUCHED
    if intents:
        more, state = f"; rolled back: {', '.join(reversed(intents))}", STATE_BEFORE
    elif judged.exit_code == 3:  # an earlier run's leavings, which could not be put right
        state = STATE_BROKEN
    elif commit.changes_host(ctx.plan):
        more = "; nothing was rolled back, because nothing had been changed"
    return _end(ctx, replace(judged, reason=judged.reason + more), state)


def _broken(ctx: Context, judged: Verdict) -> int:
    """Half-changed: a person is needed, unless it is only that the host goes down; then the next boot is."""
    if deferral.needed(ctx):
        return deferral.note(ctx, judged.reason)
    return _end(ctx, replace(judged, exit_code=3), STATE_BROKEN)


def _unguard(ctx: Context) -> list[str]:
    """Take the boot guard away; nothing is half-changed any more. Returns the failure."""
    try:
        boot_guard.remove(ctx)
    except OSError as error:
        log_traceback()
        return [one_line(error)]
    return []


def _clean(ctx: Context, judged: Verdict) -> None:
    """The host is as before: note the release, remove what only this run needed. Failures cost disk only."""
    ctx.journal.tolerant = True
    if ctx.lock is None:  # another run may hold the venv; touch its state folder no more than our own run
        _remove_workspace(ctx)
        return
    with contextlib.suppress(OSError):
        releases.record_failure(ctx.plan, ctx.state_dir, judged.verdict, judged.step)
    _remove_workspace(ctx)
    with contextlib.suppress(OSError):
        line.prune(ctx.state_dir, keep={ctx.plan.run})


def _remove_workspace(ctx: Context) -> None:
    with contextlib.suppress(OSError):
        remove_stage(ctx)
    if not list(ctx.backup_dir.glob("foreign-*")):  # somebody's edit that the undo found: kept
        shutil.rmtree(ctx.backup_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        (ctx.run_dir / layout.PAYLOAD).unlink(missing_ok=True)


def _state_of_pass(ctx: Context) -> str:
    if not commit.changes_host(ctx.plan):
        changed = [s.name for s in ctx.plan.steps if TABLE[s.kind].restarts]
        if any(ctx.results.get(name, {}).get("applied") for name in changed):
            return STATE_APPLIED
        return STATE_BEFORE if changed else STATE_UNTOUCHED
    if ctx.plan.action == "rollback":
        return STATE_BACK
    return STATE_NEW if ctx.plan.service is not None else STATE_INSTALLED


def _passed(ctx: Context) -> str:
    verdicts = [e for e in ctx.journal.events if e["e"] == "verdict"]
    skipped = [e["step"] for e in verdicts if e["verdict"] == "skipped"]
    text = f"{sum(1 for e in verdicts if e['verdict'] == 'pass')} steps passed"
    return f"{text}; skipped: {', '.join(skipped)}" if skipped else text


def _end(ctx: Context, judged: Verdict, state: str) -> int:
    host, code = ctx.plan.host, judged.exit_code or EXIT[judged.verdict]
    following = {
        3: f"ddtree-deploy recover {host}",
        6: f"ddtree-deploy plan {host}",
        130: f"ddtree-deploy {ctx.plan.action} {host}",
    }.get(code, f"ddtree-deploy status {host}")
    if state == STATE_HELD:
        following = f"ddtree-deploy confirm {host}, or ddtree-deploy rollback {host}"
    extra: dict[str, Any] = {"recovered": True} if ctx.recovered else {}
    down_s = downtime.total(ctx.journal.events)
    if down_s is not None:
        extra["down_s"] = down_s
    ctx.journal.tolerant = True
    ctx.journal.write(
        "end",
        sync=True,
        run=ctx.plan.run,
        verdict=judged.verdict if judged.verdict in VERDICTS else "fail",
        exit=code,
        state=state,
        step=judged.step,
        reason=judged.reason,
        next=following,
        **extra,
    )
    if code != 3:
        _forget_secrets(ctx)
    return code


def _forget_secrets(ctx: Context) -> None:
    """The plan needs its secrets until the run has ended (a recovery uses them), and no longer."""
    data = layout.read_json(ctx.run_dir / layout.PLAN)
    if isinstance(data, dict) and data.get("secrets"):
        with contextlib.suppress(OSError):
            durable.write_json(ctx.run_dir / layout.PLAN, {**data, "secrets": {}})
