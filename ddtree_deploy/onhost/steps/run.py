"""A user's own command, with the command that undoes it."""

from __future__ import annotations

from typing import Any

from ..context import Context, StepFailed, UndoFailed
from ..programs.process import minimal_env, run_process
from ..wire.masking import last_line


def do(ctx: Context) -> str:
    command: list[str] = ctx.option("command", [])
    undo_command: list[str] | None = ctx.option("undo", None)
    user = ctx.option("user", "")
    if undo_command:
        ctx.intent(op="run", argv=undo_command, user=user)
    done = run_process(ctx, command, env=_env(ctx, user), user=user)
    if done.rc != 0:
        raise StepFailed(f"{command[0]} ended with {done.rc}: {last_line(done.output)}")
    if undo_command:
        ctx.done()
    return f"{command[0]} ended with 0"


def undo(ctx: Context, intents: list[dict[str, Any]]) -> None:
    for intent in reversed(intents):
        user = intent["user"]
        done = run_process(
            ctx, intent["argv"], env=_env(ctx, user), user=user, log_name=f"{ctx.step.name}-undo"
        )
        if done.rc != 0:
            raise UndoFailed(f"{intent['argv'][0]} ended with {done.rc}: {last_line(done.output)}")


def _env(ctx: Context, user: str) -> dict[str, str]:
    """What the command may want to know."""
    plan = ctx.plan
    return {
        **minimal_env(user),
        "DDTREE_RUN": plan.run,
        "DDTREE_ACTION": plan.action,
        "DDTREE_PYTHON": plan.python,
        "DDTREE_SITE": plan.site,
        "DDTREE_PACKAGE_DIR": plan.package_dir,
    }
