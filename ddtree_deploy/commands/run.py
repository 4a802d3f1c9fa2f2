"""rollout and rollback: the same road over a fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddtree_deploy import console
from ddtree_deploy.commands import inputs
from ddtree_deploy.console import View
from ddtree_deploy.inputs.inventory import Host, Inventory
from ddtree_deploy.planning.changes import ChangeSet, render
from ddtree_deploy.running import fleet
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.record import Record
from ddtree_deploy.running.rollout import Job


def rollout(
    target: str,
    *,
    hosts: Path | None,
    payload: Path | None,
    playbook: Path | None,
    accept_drift: bool,
    yes: bool,
    json_lines: bool,
) -> int:
    """Roll the payload out to the hosts of `target`. Returns the exit code."""
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target)
    book = inputs.load_rollout(playbook, chosen)
    load = inputs.load_payload(payload)
    inputs.require_consent(yes, f"rollout {target}")
    return _run(
        inventory,
        target,
        chosen,
        yes=yes,
        json_lines=json_lines,
        action="rollout",
        playbook=book,
        payload=load,
        accept_drift=accept_drift,
    )


def rollback(
    target: str | None,
    *,
    hosts: Path | None,
    playbook: Path | None,
    to: str,
    accept_drift: bool,
    yes: bool,
    json_lines: bool,
) -> int:
    """Go back on the hosts of `target`, or of the last rollout made from here. Returns the exit code."""
    inventory = inputs.load_hosts(hosts)
    runs: dict[str, str] = {}
    if target is None:
        last = Record(inventory.file).last()
        target, runs = last.target, last.runs
        # The other way round: what was changed last goes back first.
        chosen = [host for name in reversed(runs) for host in inventory.resolve(name)]
    else:
        chosen = inventory.resolve(target)
    book = inputs.load_playbook(playbook, "rollback")
    inputs.require_consent(yes, f"rollback {target}")
    return _run(
        inventory,
        target,
        chosen,
        yes=yes,
        json_lines=json_lines,
        action="rollback",
        playbook=book,
        payload=None,
        accept_drift=accept_drift,
        of_runs=runs,
        to=to,
    )


def _run(
    inventory: Inventory, target: str, chosen: list[Host], *, yes: bool, json_lines: bool, **job: Any
) -> int:
    view = console.choose(json_lines)
    with Interrupts() as interrupts:
        made = Job(
            view=view,
            record=Record(inventory.file),
            interrupts=interrupts,
            confirm=_consent(view, yes),
            **job,
        )
        return fleet.run(target, chosen, made).exit_code


def _consent(view: View, yes: bool) -> Callable[[ChangeSet], bool]:
    def confirm(changes: ChangeSet) -> bool:
        if yes:
            return True
        view.text(["", *render(changes, diffs=False).splitlines(), ""])
        return inputs.ask(f"{changes.action} on {changes.host}?")

    return confirm
