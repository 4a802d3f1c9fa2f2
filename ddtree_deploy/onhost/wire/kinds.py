"""The kinds of steps, in the order in which a playbook has to list them. All other lists of kinds follow."""

from __future__ import annotations

from typing import NamedTuple

from .protocol import Service, StepSpec


class Kind(NamedTuple):
    """timeout_s: 0 where the service's limits decide. needs: another kind without which it is of no use."""

    timeout_s: float
    needs: str = ""
    service: bool = False  # it talks to a server: where none is configured, it is skipped
    gate: bool = False  # it judges the service after its start
    restarts: bool = False  # it restarts the service, and leaves it as it was
    early: bool = False  # where it fails, that says nothing about the payload
    on_controller: bool = False
    in_playbooks: bool = True


TABLE = {
    "local": Kind(300, on_controller=True),
    "lock": Kind(900, early=True),  # recovers an orphaned run first
    "preflight": Kind(120, early=True),
    "backup": Kind(600, early=True),
    "stage": Kind(300),
    "compile": Kind(300, "stage"),
    "smoke": Kind(900, "stage"),
    "baseline": Kind(1800, service=True),
    "stop": Kind(0, "start", service=True),
    "install": Kind(300),
    "start": Kind(0, "stop", service=True),
    "health": Kind(600, "start", service=True),
    "tokens": Kind(900, "baseline", service=True, gate=True),
    "acceptance": Kind(3600, "baseline", service=True, gate=True),
    "benchmark": Kind(1800, "baseline", service=True, gate=True),
    "soak": Kind(3600, "start", service=True, gate=True),
    "calibrate": Kind(0, restarts=True, in_playbooks=False),
    "sweep": Kind(0, restarts=True, in_playbooks=False),
    "confirm": Kind(60, in_playbooks=False),
    "unlock": Kind(900),
    "run": Kind(600),  # may stand anywhere between lock and unlock
}
# What the runner knows.
KINDS = tuple(name for name, kind in TABLE.items() if not kind.on_controller)


def stop_limit_s(steps: list[StepSpec], service: Service | None) -> float | None:
    """How long the service may take to end; None where nothing stops it."""
    stop = next((s for s in steps if s.kind == "stop" or TABLE[s.kind].restarts), None)
    return float(stop.options.get("limit_s", service.stop_limit_s)) if stop and service else None
