"""A host that goes down in the middle of a run: systemd takes no more orders, so the undo is the next boot's.

The run ends without an `end`, which makes it an orphan, and says why by a `deferred` event. At the boot its
guard (or, where the unit has none, the next command) recovers it; the verdict goes into the same journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..state import layout

if TYPE_CHECKING:
    from ..context import Context

EVENT = "deferred"
EXIT = 8  # the host goes on by itself


def needed(ctx: Context) -> bool:
    """Does the undo need a service manager that has begun to stop everything?"""
    from ..programs import systemctl  # followers look into journals only

    return ctx.plan.service is not None and systemctl.stopping()


def note(ctx: Context, reason: str) -> int:
    """Leave the run to the next boot. Returns the exit code of this runner."""
    ctx.journal.tolerant = True
    text = f"the host goes down ({reason}): what is to be undone is undone when it boots"
    ctx.journal.write(EVENT, sync=True, step=ctx.step.name, boot_id=layout.boot_id(), text=text)
    return EXIT


def here(events: list[dict[str, Any]]) -> bool:
    """The run was left to the next boot, and that has not come yet."""
    return bool(events) and events[-1]["e"] == EVENT and events[-1]["boot_id"] == layout.boot_id()


def awaits_guard(events: list[dict[str, Any]]) -> bool:
    """The host has booted since somebody last worked on this run, and a boot guard is there to recover it."""
    at_work = [e["boot_id"] for e in events if e["e"] in ("run", "recover")]
    guarded = any(e["e"] == "guard" for e in events)
    return guarded and bool(at_work) and at_work[-1] != layout.boot_id()


def cut_short(events: list[dict[str, Any]]) -> bool:
    """The shutdown came before any undo: no verdict of that time says anything of the payload."""
    kinds = [e["e"] for e in events]
    return EVENT in kinds and "undo" not in kinds[: kinds.index(EVENT)]
