"""Restarting a service for a measurement: its own launch, or one with other arguments; and back again."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..context import Context, StepFailed
from ..service import bring_back, dependents, serving, stopping
from ..service.base import ServiceControl
from ..service.kind import control
from ..service.ready import wait_ready
from ..wire.protocol import Launch
from . import bench_rounds
from .bench_rounds import Bench
from .greedy import Prompts


def begin(ctx: Context) -> ServiceControl:
    """Record durably that the service is restarted now. Raises StepFailed when it does not serve."""
    running = serving.control_of(ctx)
    before = serving.record_of(ctx)
    if before is None or not before.active or not before.generated:
        raise StepFailed("the service does not serve: there is nothing to restart and measure")
    ctx.intent(record=str(ctx.backup_dir), was_active=before.active, generated=before.generated)
    return running


def restart(ctx: Context, launch: Launch | None = None) -> ServiceControl:
    """Stop, and start again; with `launch` instead of what is defined. Raises StepFailed."""
    service = serving.service_of(ctx)
    running = serving.control_of(ctx)
    if running.active():
        stopping.drain(ctx, running.endpoint, service.drain_s)
        stopping.stop(ctx, running, limit_s=service.stop_limit_s, kill=service.stop_kill)
    wanted = running
    if launch is not None:
        wanted = control(dataclasses.replace(service, launch=launch), ctx.state_dir, ctx.plan.secrets)
        wanted.apply_launch(ctx)
    wanted.start(ctx)
    ctx.progress(
        wait_ready(ctx, wanted, stalled_after_s=service.start_stalled_after_s, limit_s=service.start_limit_s)
    )
    record = serving.record_of(ctx)
    if record is not None:
        dependents.require(ctx, wanted, record)
    return wanted


def rounds(  # noqa: PLR0917
    ctx: Context, running: ServiceControl, prompts: Prompts, bench: Bench, name: str, repeats: int
) -> dict[str, Any]:
    """A block of rounds on a service that was just started. Lost requests make it worthless: StepFailed."""
    result = bench_rounds.client(ctx, running, prompts, bench, name, repeats)
    void = next((r.void for r in bench_rounds.judged_rounds(result) if r.void), "")
    if void:
        raise StepFailed(f"{name}: {void}: look at the service first")
    return result


def restore(ctx: Context, intents: list[dict[str, Any]]) -> None:
    """The service as it was recorded, running, and checked."""
    bring_back.undo(ctx, intents)
    bring_back.check_undone(ctx, intents)


undo, check_undone = bring_back.undo, bring_back.check_undone
