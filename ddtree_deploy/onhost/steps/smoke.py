"""Run the payload's checks against the staged files, with the live tree left alone."""

from __future__ import annotations

import os
import shutil
from typing import Any

from .. import staging
from ..context import Context, StepFailed, StepSkipped
from ..process import minimal_env
from ..service.launch import mask_argv
from ..text import escape
from .backup import live_changes


def do(ctx: Context) -> str:
    checks: list[dict[str, Any]] = ctx.option("checks", [])
    if not checks:
        raise StepSkipped("the payload has no checks")
    env = environment(ctx)
    seconds: dict[str, float] = {}
    for check in checks:
        seconds[check["name"]] = _check(ctx, check, env)
    changed = live_changes(ctx)
    if changed:
        raise StepFailed(f"the live tree changed while the checks ran: {', '.join(changed[:5])}")
    ctx.result(seconds=seconds)
    return f"{', '.join(seconds)} passed against the staged files"


def environment(ctx: Context) -> dict[str, str]:
    """The service's environment, the farm first on PYTHONPATH, no bytecode, caches of its own."""
    user = staging.run_as(ctx)
    root = staging.root(ctx)
    env = minimal_env(user)
    if ctx.plan.service is not None:
        env |= staging.control_of(ctx).environment()
    caches = root / "cache"
    caches.mkdir(mode=0o755, exist_ok=True)
    if user:
        shutil.chown(caches, user)
    theirs = env.get("PYTHONPATH", "")
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(p for p in (str(root / "farm"), theirs) if p),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }


def _check(ctx: Context, check: dict[str, Any], env: dict[str, str]) -> float:
    name = check["name"]
    argv = [ctx.plan.python, str(staging.payload_file(ctx, check["script"]))]
    if check.get("argv") and ctx.plan.service is not None:
        # The check parses the command line; what its secrets are is nothing to it, nor to the process list.
        argv += ["--", *mask_argv(staging.control_of(ctx).future_argv())]
    ctx.progress(f"check {name}")
    done = ctx.process(
        argv,
        env=env,
        cwd=staging.root(ctx),
        timeout=check.get("timeout_s"),
        log_name=f"{ctx.step.name}-{name}",
        user=staging.run_as(ctx),
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    expected = check.get("expect", "")
    if done.rc != 0:
        said = [line for line in done.output.splitlines() if line.strip()]
        raise StepFailed(
            f"check {name} ended with {done.rc}: {escape(said[-1])[:300] if said else 'no output'}"
        )
    if expected and last != expected:
        raise StepFailed(f"check {name}: the last line should be {expected!r}, it is {escape(last)[:200]!r}")
    return done.seconds
