"""Run the payload's checks against the staged files, with the live tree left alone."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..context import Context, StepFailed, StepSkipped
from ..facts import host_facts
from ..programs.process import minimal_env, run_process
from ..service import serving
from ..staging import stage
from ..wire.masking import escape, last_line, mask_argv
from . import load
from .backup import live_changes


def do(ctx: Context) -> str:
    checks: list[dict[str, Any]] = ctx.option("checks", [])
    if not checks:
        raise StepSkipped("the payload has no checks")
    env = environment(ctx)
    skipped: dict[str, str] = {}
    seconds = _side_by_side(ctx, [c for c in checks if c.get("gpu_memory") is None], env)
    for check in (c for c in checks if c.get("gpu_memory") is not None):  # one after another: they share GPUs
        gpu, reason = _gpu_for(ctx, check)
        if gpu is None:
            skipped[check["name"]] = reason
        else:
            seconds[check["name"]] = _check(ctx, check, {**env, **_only_gpu(gpu)})
    left_out = "; ".join(f"{name} skipped: {reason}" for name, reason in skipped.items())
    if not seconds:
        raise StepSkipped(left_out)
    changed = live_changes(ctx)
    if changed:
        raise StepFailed(f"the live tree changed while the checks ran: {', '.join(changed[:5])}")
    ctx.result(seconds=seconds, **({"skipped": skipped} if skipped else {}))
    passed = f"{', '.join(seconds)} passed against the staged files"
    return f"{passed}; {left_out}" if left_out else passed


def _side_by_side(ctx: Context, checks: list[dict[str, Any]], env: dict[str, str]) -> dict[str, float]:
    """Seconds of each, mostly for the import of SGLang. The first failure is raised when all have ended."""
    if not checks:
        return {}
    with ThreadPoolExecutor(len(checks)) as pool:
        running = {check["name"]: pool.submit(_check, ctx, check, env) for check in checks}
        for spec in ctx.plan.steps:  # the time is there: what comes next begins at once
            load(spec.kind)
    return {name: future.result() for name, future in running.items()}


def _gpu_for(ctx: Context, check: dict[str, Any]) -> tuple[int | None, str]:
    """The GPU for a check that needs one (the freest), or None and why it is skipped."""
    needed = check["gpu_memory"]
    gpus, problem = host_facts.gpus()
    if problem and ctx.plan.gpus:
        raise StepFailed(f"check {check['name']} needs a GPU: {problem}")
    if not gpus:
        return None, problem or "this host has no GPU"
    best = max(range(len(gpus)), key=lambda index: gpus[index].memory_free_mib)
    free, needed_mib = gpus[best].memory_free_mib, -(-needed // 1024**2)
    if free < needed_mib:
        return None, f"it needs {needed_mib} MiB of GPU memory, the freest of {len(gpus)} GPUs has {free} MiB"
    return best, ""


def _only_gpu(index: int) -> dict[str, str]:
    """nvidia-smi numbers GPUs by their bus, CUDA by their speed unless told otherwise."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}


def environment(ctx: Context) -> dict[str, str]:
    """The service's environment, the overlay first on PYTHONPATH, no bytecode, caches of its own."""
    user = stage.run_as(ctx)
    root = stage.root(ctx)
    env = minimal_env(user)
    if ctx.plan.service is not None:
        env |= serving.control_of(ctx).environment()
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
    argv = [ctx.plan.python, str(stage.payload_file(ctx, check["script"]))]
    if check.get("argv") and ctx.plan.service is not None:
        # The check parses the command line; what its secrets are is nothing to it, nor to the process list.
        argv += ["--", *mask_argv(serving.control_of(ctx).future_argv())]
    ctx.progress(f"check {name}")
    done = run_process(
        ctx,
        argv,
        env=env,
        cwd=stage.root(ctx),
        timeout=check.get("timeout_s"),
        log_name=f"{ctx.step.name}-{name}",
        user=stage.run_as(ctx),
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    expected = check.get("expect", "")
    if done.rc != 0:
        raise StepFailed(f"check {name} ended with {done.rc}: {last_line(done.output)}")
    if expected and last != expected:
        raise StepFailed(f"check {name}: the last line should be {expected!r}, it is {escape(last)[:200]!r}")
    return done.seconds
