"""What ran before a stop of the service and went down with it is up again: started, waited for, judged."""

from __future__ import annotations

from ..context import Context, StepFailed
from .base import Record, ServiceControl

POLL_S = 0.1


def require(ctx: Context, control: ServiceControl, before: Record) -> str:
    """Wait until all is up that was, at most as long as the step. What is down is started once (more).

    Returns words for people; "" where nothing depends on the service. Raises StepFailed naming what is down.
    """
    wanted = _wanted(before)
    started = False
    while True:
        states = control.states(wanted)
        lacking = [name for name in wanted if not states[name].up]
        if not lacking:
            return f"up again with it: {', '.join(wanted)}" if wanted else ""
        if not any(states[name].moving for name in lacking):
            if started:
                raise StepFailed(f"{_told(control, before)}: look at it with systemctl status")
            started = True
            # Where the service was down, they ran without it, and are not to start it.
            control.start_units(lacking, alone=not before.active)
        ctx.pause(POLL_S)


def down(control: ServiceControl, before: Record) -> str:
    """What is not up any more, in words; "" for nothing."""
    states = control.states(_wanted(before))
    return ", ".join(f"{name} ({state.how})" for name, state in states.items() if not state.up)


def _told(control: ServiceControl, before: Record) -> str:
    return f"up before, and not up again after the service was stopped and started: {down(control, before)}"


def _wanted(before: Record) -> list[str]:
    """Those that were up. One that was about to start is started, too, but may have its reasons to fail."""
    found = before.dependents if before.active else before.dependents | before.conflicting
    return [name for name, state in found.items() if state != "activating"]
