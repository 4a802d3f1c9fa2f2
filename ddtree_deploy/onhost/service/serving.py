"""What the serving steps share: the control of the service, calls that an interrupt ends, earlier results."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..context import Context, StepFailed, StepSkipped
from ..programs import bounded
from ..wire.protocol import Service
from .base import RECORD, Record, ServiceControl, ServiceError
from .kind import control

T = TypeVar("T")

HANG_S = 60.0
# An answer comes whole, so nobody sees its tokens come: a longer one may take longer.
HANG_TOKENS = 128


def service_of(ctx: Context) -> Service:
    """The plan's service. Raises StepSkipped when the host has none."""
    if ctx.plan.service is None:
        raise StepSkipped("the host has no service")
    return ctx.plan.service


def control_of(ctx: Context) -> ServiceControl:
    """The control of the plan's service. Raises StepSkipped when the host has none."""
    try:
        return control(service_of(ctx), ctx.state_dir, ctx.plan.secrets)
    except ServiceError as e:
        raise StepFailed(str(e)) from e


def record_of(ctx: Context) -> Record | None:
    """The service as this run's backup found it; None where no backup step ran."""
    if not (ctx.backup_dir / RECORD).exists():
        return None
    return Record.load(ctx.backup_dir)


def undone_record(ctx: Context) -> Record | None:
    """Rollback: the service as it was before the run that is being undone."""
    folder = Path(ctx.run_dir).parent / ctx.plan.undoes / "backup"
    if ctx.plan.action != "rollback" or not ctx.plan.undoes or not (folder / RECORD).exists():
        return None
    return Record.load(folder)


def result_of(ctx: Context, kind: str) -> dict[str, Any]:
    """The figures of the (last) step of this kind in this run; empty when it gave none."""
    found: dict[str, Any] = {}
    for spec in ctx.plan.steps:
        if spec.kind == kind and spec.name in ctx.results:
            found = ctx.results[spec.name]
    return found


def skip(ctx: Context, reason: str) -> NoReturn:
    """The gate has nothing to judge. A rollback skips it; else, having been asked for, it is inconclusive."""
    if ctx.plan.action == "rollback" or (ctx.plan.action == "rollout" and ctx.step.kind == "baseline"):
        raise StepSkipped(reason)
    raise StepFailed(reason, verdict="inconclusive")


def require_serving(ctx: Context) -> ServiceControl:
    """The control of a service that serves. Skips a gate on one that is down by design; fails where this run
    had started it, or only judges."""
    control, started = control_of(ctx), result_of(ctx, "start")
    if started:
        with control.one_look():
            runs, how = control.alive()
            if not runs:
                raise StepFailed(f"the service is down: {how}")
            now = control.processes().main
        if now != started["pid"]:
            raise StepFailed(f"the service was restarted by somebody: process {started['pid']} is {now} now")
        return control
    if control.active():
        now = control.processes().main
        if ctx.served and now != ctx.served:
            raise StepFailed(f"the service was restarted meanwhile: process {ctx.served} is {now} now")
        ctx.served = now
        return control
    if ctx.plan.action not in ("rollout", "rollback"):
        raise StepFailed("the service is down")
    raise StepSkipped("the service is down, and this run did not start it")


def lives(ctx: Context, control: ServiceControl) -> tuple[bool, str]:
    """Whether the service still runs, and if not, how it ended, as far as that is known."""
    if result_of(ctx, "start"):
        return control.alive()
    return control.active(), "it does not run any more"  # somebody else started it: how it ended is theirs


def settled(ctx: Context, control: ServiceControl) -> tuple[bool, str]:
    """The same after a lost connection: a process closes its connections a moment before it is gone."""
    for _ in range(10):
        runs, how = lives(ctx, control)
        if not runs:
            break
        ctx.pause(0.2)
    return runs, how


def hang_s(ctx: Context, tokens: int) -> float:
    """Seconds after which a server that owes an answer of so many tokens hangs: `hang_after` for each 128."""
    return float(ctx.option("hang_after_s", HANG_S)) * max(1.0, tokens / HANG_TOKENS)


def call(ctx: Context, function: Callable[[], T]) -> T:
    """Ask the service, with a deadline of the call's own, in a thread: an interrupt need not wait for it."""
    answer = bounded.in_thread(function, ctx.check)
    ctx.answered = time.time()
    return answer
