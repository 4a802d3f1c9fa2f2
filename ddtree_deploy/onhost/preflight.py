"""The checks of the preflight step."""

from __future__ import annotations

import os

from .context import Context, StepFailed
from .files import FilesError


def examine(ctx: Context) -> str:
    """What was checked, for people. Raises StepFailed."""
    drift(ctx)
    return f"{len(ctx.plan.targets)} paths are what the plan was made for"


def drift(ctx: Context) -> None:
    """Every path that the plan touches is still what it was planned for (exit 6), and can be changed."""
    files = ctx.files()
    moved = []
    for target in ctx.plan.targets:
        try:
            files.confine(target.path)
        except FilesError as error:
            raise StepFailed(f"{target.ref}: {target.path} {error.strerror}") from None
        now = files.look(target.path)
        if now.kind in ("dir", "other"):
            raise StepFailed(f"{target.ref} is a {now.kind} on this host", exit_code=6)
        if now.sha256 != target.before:
            moved.append(
                f"{target.ref} is {now.sha256[:12] or 'absent'}, planned for {target.before[:12] or 'absent'}"
            )
    if moved:
        more = f" (and {len(moved) - 3} more)" if len(moved) > 3 else ""
        raise StepFailed(f"the host has moved since the plan: {'; '.join(moved[:3])}{more}", exit_code=6)
    _writable(ctx)


def _writable(ctx: Context) -> None:
    for folder in sorted({os.path.dirname(t.path) for t in ctx.plan.targets}):
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise StepFailed(f"{folder} is on a file system that is mounted read-only")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StepFailed(f"no permission to write in {folder}")
