"""The service as it was recorded: the undo of `stop`, `calibrate` and `sweep`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..context import Context, StepFailed, UndoFailed
from . import dependents, gpu_memory, listener, serving, stopping
from .base import Record, ServiceControl, ServiceError
from .ready import wait_ready

EXEC_S = 30.0


def undo(ctx: Context, intents: list[dict[str, Any]]) -> None:
    """Start what ran before, and what went down with it. Idempotent: what runs as recorded is left alone."""
    control = serving.control_of(ctx)
    folder, before = _recorded(intents)
    if not before.active:
        return
    _service(ctx, control, folder, before, set(intents[0].get("gpus", [])))
    if said := dependents.require(ctx, control, before):
        ctx.progress(said)


def _service(ctx: Context, control: ServiceControl, folder: Path, before: Record, gpus: set[str]) -> None:
    service = serving.service_of(ctx)
    if _runs_as_before(control, before):
        # One that got SIGTERM may answer as long as it drains, and is gone a moment later.
        if not control.ending() and (not before.generated or control.generates()):
            ctx.progress("the old service still runs")
            return
        ctx.progress("the old service was asked to end: it is started again")
    if stranger := control.stranger(before.argv):  # it came after our stop, and is not ours to end
        ctx.progress(f"{stranger}; the old service is started all the same")
    else:  # whatever is half stopped or half started has to be gone first
        stopping.stop(
            ctx,
            control,
            limit_s=float(ctx.option("limit_s", service.stop_limit_s)),
            kill=bool(ctx.option("kill", service.stop_kill)),
            undoing=True,  # one that ran into the limit would end later, and stay down
        )
    control.restore_launch(ctx, folder)
    try:  # the new one's memory has to be back, too; whether it is enough the start itself shows
        gpu_memory.wait_free(ctx, gpus, gpu_memory.fraction_of(before.argv))
    except StepFailed as e:
        ctx.progress(e.reason)
    control.start(ctx)
    if before.generated:
        try:
            said = wait_ready(
                ctx, control, stalled_after_s=service.start_stalled_after_s, limit_s=service.start_limit_s
            )
        except StepFailed as e:
            held = stranger or listener.look(control)[0]
            raise UndoFailed("; ".join(filter(None, [e.reason, held]))) from e
        ctx.progress(f"the old service {said}")


def check_undone(ctx: Context, intents: list[dict[str, Any]]) -> None:
    control = serving.control_of(ctx)
    folder, before = _recorded(intents)
    different = control.launch_restored(folder)
    if different and before.active:
        raise UndoFailed(different)
    if control.active() != before.active:
        was, now = ("ran", "is down") if before.active else ("was down", "runs")
        raise UndoFailed(f"the service {was} before and {now}: {control.alive()[1]}")
    if before.active and before.argv and not _became(ctx, control, before.argv):
        other = "the service runs with another command line than before"
        # A stranger may have answered in its place before it was seen to have died.
        raise UndoFailed("; ".join(filter(None, [other, control.stranger(before.argv)])))
    if before.generated and not control.generates():
        raise UndoFailed("the service generated before and does not now")
    if before.active and (lacking := dependents.down(control, before)):
        raise UndoFailed(f"up before, and not any more: {lacking}")


def _became(ctx: Context, control: ServiceControl, argv: list[str]) -> bool:
    """Whether the service runs with this command line, soon: a process just started has yet to exec it, and
    one that did not generate before is not waited for otherwise.
    """
    end = time.monotonic() + EXEC_S
    while control.running_argv() != argv:
        if time.monotonic() > end:
            return False
        ctx.pause(0.1)
    return True


def _recorded(intents: list[dict[str, Any]]) -> tuple[Path, Record]:
    folder = Path(intents[0]["record"])
    try:
        return folder, Record.load(folder)
    except ServiceError as e:
        raise UndoFailed(str(e)) from e


def _runs_as_before(control: ServiceControl, before: Record) -> bool:
    return control.active() and control.running_argv() == before.argv
