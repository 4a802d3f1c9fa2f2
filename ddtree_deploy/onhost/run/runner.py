"""Executes a plan: each step one verdict, stop at the first that is not a pass, undo, one `end` event."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import steps
from ..context import Context, Interrupt, StepFailed, StepSkipped
from ..programs import bounded
from ..recovery import boot_guard, commit, deferral
from ..service.base import ServiceError
from ..staging.stage import remove_stage
from ..state import layout, releases
from ..state.journal import Journal, read
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


@dataclass
class Outcome:
    """How the steps went, before any undo."""

    verdict: str = "pass"  # pass | fail | inconclusive | interrupted | died
    step: str = ""
    reason: str = ""
    exit_code: int = 0


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
        outcome = execute(ctx)
        code = settle(ctx, outcome)
    if ctx.lock is not None:
        ctx.lock.release()
    ctx.journal.close()
    alive.release()
    return code


def execute(ctx: Context) -> Outcome:
    """Run the steps in order until one is not a pass. Never raises for what a step does."""
    verdicts: dict[str, str] = {}
    for spec in ctx.plan.steps:
        outcome = _step(ctx, spec)
        verdicts[spec.name] = outcome.verdict
        if outcome.verdict == "inconclusive" and _may_hold(ctx, spec):
            # The gates after it are still asked: what fails one of them is not held but undone.
            ctx.held = ctx.held or f"{spec.name}: {outcome.reason}"
            verdicts[spec.name] = "held"
        elif outcome.verdict not in ("pass", "skipped"):
            return outcome
    missing = [s.name for s in ctx.plan.steps if verdicts.get(s.name) not in ("pass", "skipped", "held")]
    if missing or not verdicts:  # a gate that never ran has not passed
        return Outcome("fail", (missing or [""])[0], "it never ran")
    return Outcome()


def _may_hold(ctx: Context, spec: StepSpec) -> bool:
    """A gate on the new release may be left undecided where the plan says so; nothing before it may."""
    return ctx.plan.action == "rollout" and ctx.plan.on_inconclusive == "hold" and TABLE[spec.kind].gate


def _step(ctx: Context, spec: StepSpec) -> Outcome:
    ctx.step = spec
    start = time.monotonic()
    ctx.deadline = start + spec.timeout_s
    outcome = Outcome("fail", spec.name)
    try:
        ctx.journal.write("start", step=spec.name, kind=spec.kind)
        if ctx.lock is not None:
            ctx.lock.at_step(spec.name)
        if ctx.stop_event.is_set():
            raise Interrupt
        with bounded.watched(ctx.check):
            outcome.reason = steps.load(spec.kind).do(ctx)
        if spec.kind != "unlock":  # what was decided there stands
            ctx.check_time()
        outcome.verdict = "pass"
    except StepSkipped as skipped:
        outcome.verdict, outcome.reason = "skipped", str(skipped)
    except StepFailed as failed:
        outcome.verdict, outcome.reason, outcome.exit_code = failed.verdict, failed.reason, failed.exit_code
    except ServiceError as error:
        outcome.reason = str(error)
    except Interrupt:
        outcome.verdict, outcome.reason = "interrupted", ctx.interrupted_by or "interrupted"
    except OSError as error:
        outcome.reason = one_line(error)
        log_traceback()
    except Exception as error:
        outcome.reason = f"unexpected {one_line(error)}"
        log_traceback()
    outcome.reason = " ".join(str(outcome.reason).split())
    with contextlib.suppress(OSError):  # a full disk: the verdict stands, also unwritten
        ctx.journal.write(
            "verdict",
            sync=True,
            step=spec.name,
            verdict="fail" if outcome.verdict == "interrupted" else outcome.verdict,
            reason=outcome.reason,
            seconds=round(time.monotonic() - start, 3),
        )
    return outcome


def settle(ctx: Context, outcome: Outcome, *, recovered: bool = False) -> int:
    """Commit what passed, or put the host back; write the `end` event. Returns the exit code.

    On a host that goes down: 8, and no `end` (see `deferral`).
    """
    with contextlib.suppress(OSError):
        (ctx.run_dir / layout.RESERVE).unlink(missing_ok=True)
    if outcome.verdict == "pass" or commit.decided(ctx):  # a decision stands, whatever came after it
        try:
            if not ctx.recorded:
                commit.forward(ctx)
        except commit.NotCommitted as error:
            outcome = Outcome("fail", "unlock", str(error))
        except OSError as error:
            log_traceback()
            reason = f"the release is in place but could not be recorded: {one_line(error)}"
            return _broken(ctx, Outcome("fail", "unlock"), reason, recovered)
        else:
            held = commit.held(ctx)
            if held:
                step, _, reason = held.partition(": ")
                return _end(ctx, "inconclusive", 7, STATE_HELD, step, f"{reason}; {_passed(ctx)}", recovered)
            return _end(ctx, "pass", 0, _state_of_pass(ctx), "", _passed(ctx), recovered)
    intents = intents_by_step(read(ctx.journal.path)[0])
    if not intents:
        unguarded = _unguard(ctx, [])
        if unguarded:
            reason = f"{outcome.reason}; rollback incomplete: {unguarded[0]}"
            return _broken(ctx, outcome, reason, recovered)
        _clean(ctx, outcome)
        code = outcome.exit_code or EXIT[outcome.verdict]
        if code == 3:  # an earlier run's leavings, which could not be put right
            return _end(ctx, outcome.verdict, code, STATE_BROKEN, outcome.step, outcome.reason, recovered)
        reason = outcome.reason
        if commit.changes_host(ctx.plan):
            reason += "; nothing was rolled back, because nothing had been changed"
        return _end(ctx, outcome.verdict, code, STATE_UNTOUCHED, outcome.step, reason, recovered)
    if deferral.needed(ctx):
        return deferral.note(ctx, outcome.reason)
    failures = _unguard(ctx, undo_all(ctx, intents))
    if failures:
        reason = f"{outcome.reason}; rollback incomplete: {'; '.join(failures)}"
        return _broken(ctx, outcome, reason, recovered)
    _clean(ctx, outcome)
    code = outcome.exit_code or EXIT[outcome.verdict]
    reason = f"{outcome.reason}; rolled back: {', '.join(reversed(intents))}"
    return _end(ctx, outcome.verdict, code, STATE_BEFORE, outcome.step, reason, recovered)


def _broken(ctx: Context, outcome: Outcome, reason: str, recovered: bool) -> int:
    """Half-changed: a person is needed, unless it is only that the host goes down; then the next boot is."""
    if deferral.needed(ctx):
        return deferral.note(ctx, reason)
    return _end(ctx, outcome.verdict, 3, STATE_BROKEN, outcome.step, reason, recovered)


def _unguard(ctx: Context, failures: list[str]) -> list[str]:
    """Take the boot guard away, unless something is still half-changed. Returns all failures."""
    if failures:
        return failures
    try:
        boot_guard.remove(ctx)
    except OSError as error:
        log_traceback()
        return [one_line(error)]
    return []


def _clean(ctx: Context, outcome: Outcome) -> None:
    """The host is as before: note the release, remove what only this run needed. Failures cost disk only."""
    ctx.journal.tolerant = True
    if ctx.lock is None:  # another run may hold the venv; touch its state folder no more than our own run
        _remove_workspace(ctx)
        return
    with contextlib.suppress(OSError):
        releases.record_failure(ctx.plan, ctx.state_dir, outcome.verdict, outcome.step)
    _remove_workspace(ctx)
    with contextlib.suppress(OSError):
        releases.prune(ctx.state_dir, keep_run=ctx.plan.run)


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
    verdicts = [e for e in read(ctx.journal.path)[0] if e["e"] == "verdict"]
    skipped = [e["step"] for e in verdicts if e["verdict"] == "skipped"]
    text = f"{sum(1 for e in verdicts if e['verdict'] == 'pass')} steps passed"
    return f"{text}; skipped: {', '.join(skipped)}" if skipped else text


def _end(  # noqa: PLR0917
    ctx: Context, verdict: str, code: int, state: str, step: str, reason: str, recovered: bool
) -> int:
    host = ctx.plan.host
    following = {
        3: f"ddtree-deploy recover {host}",
        6: f"ddtree-deploy plan {host}",
        130: f"ddtree-deploy {ctx.plan.action} {host}",
    }.get(code, f"ddtree-deploy status {host}")
    if state == STATE_HELD:
        following = f"ddtree-deploy confirm {host}, or ddtree-deploy rollback {host}"
    extra: dict[str, Any] = {"recovered": True} if recovered else {}
    ctx.journal.tolerant = True
    ctx.journal.write(
        "end",
        sync=True,
        run=ctx.plan.run,
        verdict=verdict if verdict in VERDICTS else "fail",
        exit=code,
        state=state,
        step=step,
        reason=reason,
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
            layout.write_json(ctx.run_dir / layout.PLAN, {**data, "secrets": {}})
