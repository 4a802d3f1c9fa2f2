"""Start the service as installed; it passes when a prompt of our own made tokens. Undo: stop it."""

from __future__ import annotations

import time
from typing import Any

from ..context import Context, StepFailed, StepSkipped, UndoFailed
from ..programs.site_probe import ProbeError
from ..service import dependents, imports, release, serving, stopping
from ..service.base import Footprint, ServiceControl
from ..service.ready import wait_ready


def do(ctx: Context) -> str:
    service = serving.service_of(ctx)
    control = serving.control_of(ctx)
    undone = serving.undone_record(ctx)
    if undone is not None and not undone.active:
        others = dependents.require(ctx, control, undone)  # that ran without it
        said = f"the service was not running before {ctx.plan.undoes}, and stays down"
        raise StepSkipped("; ".join(filter(None, [said, others])))
    # Who came to the port of an adopted service that is down is not the service.
    before = Footprint() if control.stranger([]) else control.footprint()
    stopping.wait_gone(ctx, control, before, limit_s=10.0, kill=False)  # a start must not race a leftover
    record = serving.record_of(ctx)
    ctx.intent(was_active=record.active if record else True)
    control.start(ctx)
    ctx.done()
    said = wait_ready(
        ctx,
        control,
        stalled_after_s=float(ctx.option("stalled_after_s", service.start_stalled_after_s)),
        limit_s=float(ctx.option("limit_s", service.start_limit_s)),
    )
    if record is not None and record.active:
        said = "; ".join(filter(None, [said, dependents.require(ctx, control, record)]))
    code = _code(ctx, control)
    footprint = control.footprint()
    release.remember(ctx, control)
    ctx.result(
        started=True,
        ready=round(time.time(), 3),
        pid=footprint.main,
        members=sorted(list(key) for key in footprint.members),
        ports=sorted(footprint.ports),
    )
    return "; ".join(filter(None, [said, code]))


def _code(ctx: Context, control: ServiceControl) -> str:
    """The process that was started imports what was installed."""
    try:
        return imports.check(ctx, control, imports.planned(ctx), next_start=False)
    except ProbeError as error:
        raise StepFailed(f"the venv's Python does not answer: {error}") from None


def undo(ctx: Context, intents: list[dict[str, Any]]) -> None:
    """Stop what this run started; what does not end is killed, because it is our own."""
    service = serving.service_of(ctx)
    control = serving.control_of(ctx)
    if control.started():
        stopping.stop(ctx, control, limit_s=service.stop_limit_s, kill=True, undoing=True)
    record = serving.record_of(ctx)
    if record is not None and not record.active:  # else `stop` brings back what went down with it
        dependents.require(ctx, control, record)


def check_undone(ctx: Context, intents: list[dict[str, Any]]) -> None:
    """What was down before is down again; what ran is checked by `stop`."""
    control = serving.control_of(ctx)
    if not intents[0]["was_active"] and control.active():
        raise UndoFailed("the service was down before and runs")
    record = serving.record_of(ctx)
    if record is not None and not record.active and (lacking := dependents.down(control, record)):
        raise UndoFailed(f"up before, and not any more: {lacking}")
