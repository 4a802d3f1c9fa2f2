"""The boot guard: as long as a run is at work, its service does not start half-changed.

The first live mutation of a run puts a drop-in whose `ExecStartPre=` is `guard_check`, with the run's own
runner, as root; the last one takes it away.
"""

from __future__ import annotations

import sys
from typing import Any

from ..context import Context, StepFailed
from ..service import serving
from ..service.base import ServiceError
from ..state import layout

EVENT = "guard"


def put(ctx: Context) -> None:
    """Before the first live mutation. Idempotent; nothing where the service is none of systemd's."""
    if ctx.plan.service is None or _events(ctx):
        return
    guarded = serving.control_of(ctx)
    unit = guarded.guarded_unit()
    if not unit:
        return
    bare = guarded.guard_folder_is_bare()
    ctx.journal.write(EVENT, sync=True, step=ctx.step.name, unit=unit, keep_folder=bare)
    argv = [sys.executable, "-I", "-S", str(ctx.run_dir / layout.RUNNER), "guard", str(ctx.state_dir), unit]
    try:
        guarded.put_guard(argv, ctx.plan.run)
    except (ServiceError, OSError) as error:
        raise StepFailed(f"the boot guard cannot be put up: {error}") from None


def _events(ctx: Context) -> list[dict[str, Any]]:
    """Not empty when this run has, or may have, put its guard."""
    return [e for e in ctx.journal.events if e["e"] == EVENT]


def remove(ctx: Context) -> None:
    """The last live mutation. Idempotent. Raises OSError."""
    events = _events(ctx)
    if ctx.plan.service is None or not events:
        return
    try:
        serving.control_of(ctx).remove_guard(keep_folder=events[0]["keep_folder"])
    except (ServiceError, StepFailed) as error:
        raise OSError(f"the boot guard cannot be removed: {error}") from None
