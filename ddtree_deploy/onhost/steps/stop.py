"""Stop the service and prove it: no process lives, its ports are free. Undo: start the old one again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .. import gpu_memory, guard, serving
from ..context import Context, StepFailed, StepSkipped, UndoFailed
from ..service import Footprint, Record, ServiceControl, ServiceError, stopping
from ..service.ready import wait_ready

EXEC_S = 30.0


def do(ctx: Context) -> str:
    service = serving.service_of(ctx)
    control = serving.control_of(ctx)
    before = serving.record_of(ctx)
    if before is None:  # a playbook without `backup`
        before = control.record(ctx.backup_dir)
    if not control.active():
        busy = stopping.held_ports(Footprint(), control.endpoint.port)
        left = {pid for pid, _ in control.processes().members}
        if busy or left:
            left |= {pid for holders in busy.values() for pid in holders}
            raise StepFailed(
                "the service is not running, but something of it is "
                + stopping.leftovers(control, left, busy, 0.0, False)
            )
        raise StepSkipped("the service was not running")
    drained = stopping.drain(ctx, control.endpoint, float(ctx.option("drain_s", service.drain_s)))
    ctx.progress(drained)
    gpus = gpu_memory.used_by(pid for pid, _ in control.processes().members)
    guard.put(ctx)
    ctx.intent(
        record=str(ctx.backup_dir),
        was_active=before.active,
        generated=before.generated,
        gpus=sorted(gpus),
    )
    ended = stopping.stop(
        ctx,
        control,
        limit_s=float(ctx.option("limit_s", service.stop_limit_s)),
        kill=bool(ctx.option("kill", service.stop_kill)),
    )
    ctx.done()
    free = gpu_memory.wait_free(ctx, gpus, gpu_memory.fraction_of(control.future_argv()))
    return "; ".join(filter(None, [drained, ended, free]))


def undo(ctx: Context, intents: list[dict[str, Any]]) -> None:
    """Start what ran before. Idempotent: one that runs with the recorded command line is left alone."""
    service = serving.service_of(ctx)
    control = serving.control_of(ctx)
    folder, before = _recorded(intents)
    if not before.active:
        return
    if _runs_as_before(control, before):
        # One that got SIGTERM may answer as long as it drains, and is gone a moment later.
        if not control.ending() and (not before.generated or control.generates()):
            ctx.progress("the old service still runs")
            return
        ctx.progress("the old service was asked to end: it is started again")
    stranger = control.stranger(before.argv)
    if stranger:  # it came after our stop, and is not ours to end
        raise UndoFailed(f"the old service cannot start: {stranger}; end it by hand")
    # Whatever is half stopped or half started has to be gone first.
    stopping.stop(
        ctx,
        control,
        limit_s=float(ctx.option("limit_s", service.stop_limit_s)),
        kill=bool(ctx.option("kill", service.stop_kill)),
    )
    control.restore_launch(ctx, folder)
    try:  # the new one's memory has to be back, too; whether it is enough the start itself shows
        gpu_memory.wait_free(ctx, set(intents[0].get("gpus", [])), gpu_memory.fraction_of(before.argv))
    except StepFailed as e:
        ctx.progress(e.reason)
    control.start(ctx)
    if before.generated:
        said = wait_ready(
            ctx, control, stalled_after_s=service.start_stalled_after_s, limit_s=service.start_limit_s
        )
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
        raise UndoFailed("the service runs with another command line than before")
    if before.generated and not control.generates():
        raise UndoFailed("the service generated before and does not now")


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
