"""Stop the service and prove it: no process lives, its ports are free. Undo: start the old one again."""

from __future__ import annotations

import dataclasses

from ..context import Context, StepFailed, StepSkipped
from ..recovery import boot_guard
from ..service import bring_back, gpu_memory, serving, stopping
from ..service.base import Footprint


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
            raise StepFailed(
                "the service is not running, but something of it is "
                + stopping.leftovers(control, left, busy, 0.0, False)
            )
        raise StepSkipped("the service was not running")
    if stranger := control.stranger(before.argv):
        raise StepFailed(f"{stranger}, which is not the service that was recorded")
    # As they are now: the record may be of long ago, and a recovery has nothing else.
    before = dataclasses.replace(before, dependents=control.dependents())
    before.save(ctx.backup_dir)
    pids = {pid for pid, _ in control.processes().members}
    gpus, all_back = gpu_memory.used_by(pids), gpu_memory.free_without(pids)
    drained = stopping.drain(ctx, control.endpoint, float(ctx.option("drain_s", service.drain_s)))
    ctx.progress(drained)
    boot_guard.put(ctx)
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
    free = gpu_memory.wait_free(ctx, gpus, gpu_memory.fraction_of(control.future_argv()), all_back=all_back)
    along = f"with it: {', '.join(before.dependents)}" if before.dependents else ""
    return "; ".join(filter(None, [drained, ended, along, free]))


undo, check_undone = bring_back.undo, bring_back.check_undone
