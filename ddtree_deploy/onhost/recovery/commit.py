"""The point of no return: one `commit` event in the journal. A crash before it undoes, after it finishes."""

from __future__ import annotations

import contextlib

from ..context import Context
from ..staging.stage import remove_stage
from ..state import layout, line, releases
from ..wire.protocol import Plan
from . import boot_guard


class NotCommitted(Exception):
    """The decision could not be written down, so it was not made."""


def changes_host(plan: Plan) -> bool:
    """Does this plan install anything (a verification does not)?"""
    return any(s.kind == "install" for s in plan.steps)


def decided(ctx: Context) -> bool:
    return any(e["e"] == "commit" for e in ctx.journal.events)


def held(ctx: Context) -> str:
    """Why the committed release waits for `confirm` or `rollback`; empty for one that passed."""
    return next((str(e.get("held", "")) for e in ctx.journal.events if e["e"] == "commit"), "")


def forward(ctx: Context) -> None:
    """Decide, then record the release and tidy up. Idempotent: a recovery calls it again.

    Raises NotCommitted before the decision, OSError after it.
    """
    if not decided(ctx):
        try:
            ctx.journal.write("commit", sync=True, step=ctx.step.name, held=ctx.held)
        except OSError as error:
            raise NotCommitted(f"cannot write the journal: {error.strerror}") from None
    if changes_host(ctx.plan):
        intents = [e["undo"] for e in ctx.journal.events if e["e"] == "intent"]
        made = [undo["path"] for undo in intents if undo.get("op") == "mkdir"]
        releases.commit(ctx.plan, ctx.run_dir, made, "held" if held(ctx) else "good")
    else:
        releases.applied(ctx.state_dir, ctx.run_dir)
    boot_guard.remove(ctx)
    _tidy(ctx)
    ctx.recorded = True


def _tidy(ctx: Context) -> None:
    """What only the run needed. Failures cost disk space, not the release."""
    with contextlib.suppress(OSError):
        remove_stage(ctx)
    with contextlib.suppress(OSError):
        (ctx.run_dir / layout.PAYLOAD).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # What a rollback went behind is read again when its record has to be completed after a crash.
        line.prune(ctx.state_dir, keep={ctx.plan.run, ctx.plan.undoes})
