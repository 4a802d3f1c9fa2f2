"""Putting the host back: undo the steps that recorded intents, last first, then check all of them."""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import replace
from typing import Any

from .. import steps
from ..context import Context, StepFailed, UndoFailed
from ..programs import bounded
from ..service.base import ServiceError
from ..wire.protocol import StepSpec

# An undo has a bound of its own: a service has to come back, however short the time of the step undone.
UNDO_S = 3600.0
_FOR_PEOPLE = (UndoFailed, StepFailed, ServiceError)  # their texts say all that there is to say


def intents_by_step(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """From a journal: step name -> its intents in order; only steps that have some, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["e"] == "intent":
            found.setdefault(event["step"], []).append(event["undo"])
    return found


def undo_all(ctx: Context, intents: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Undo and check everything; goes on after a failure. Returns the failures, `STEP: reason`."""
    specs = {s.name: s for s in ctx.plan.steps}
    names = [n for n in specs if n in intents][::-1]
    failures: dict[str, str] = {}
    ctx.uninterruptible = True
    ctx.journal.tolerant = True
    for phase in ("undo", "check_undone"):
        for name in names:
            if name in failures:
                continue
            reason = _one(ctx, specs[name], phase, intents[name])
            if reason:
                failures[name] = reason
    return [f"{name}: {reason}" for name, reason in failures.items()]


def _one(ctx: Context, spec: StepSpec, function: str, intents: list[dict[str, Any]]) -> str:
    """Run `undo` or `check_undone` of one step. Returns the reason of its failure, or ""."""
    ctx.step = replace(spec, timeout_s=UNDO_S)
    ctx.deadline = time.monotonic() + UNDO_S
    what = "undo" if function == "undo" else "check"
    if ctx.lock is not None:
        ctx.lock.at_step(f"{what} of {spec.name}")
    ctx.journal.write("undo", step=spec.name, phase="start", what=what)
    reason = ""
    try:
        action = getattr(steps.load(spec.kind), function, None)
        if action is not None:
            with bounded.watched(ctx.check):
                action(ctx, intents)
    except Exception as error:
        reason = ("" if isinstance(error, (*_FOR_PEOPLE, OSError)) else "unexpected: ") + one_line(error)
        log_traceback()
    ctx.journal.write(
        "undo", sync=True, step=spec.name, phase="failed" if reason else "done", what=what, reason=reason
    )
    return reason


def log_traceback() -> None:
    """The exception at hand, to the runner's log. A disk too full for that must not end the run as well."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


def one_line(error: BaseException) -> str:
    """An exception as one line for people."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    text = " ".join(str(error).split())
    return text if isinstance(error, _FOR_PEOPLE) else f"{type(error).__name__}: {text}"
