"""rollout and rollback: the same road over a fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddtree_deploy import console
from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.ahead import Called
from ddtree_deploy.planning.changes import ChangeSet, render
from ddtree_deploy.running import fleet
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.record import Record
from ddtree_deploy.running.rollout import Job


def rollout(
    called: Called,
    target: str,
    *,
    payload: Path | None,
    playbook: Path | None,
    accept_drift: bool,
    yes: bool,
    json_lines: bool,
) -> int:
    """Roll the payload out to the hosts of `target`. Returns the exit code."""
    book = inputs.load_rollout(playbook, called.chosen)
    load = inputs.load_payload(payload)
    inputs.require_consent(yes, f"rollout {target}")
    view = console.choose(json_lines)
    with Interrupts() as interrupts:
        job = Job(
            action="rollout",
            playbook=book,
            payload=load,
            view=view,
            record=Record(called.inventory.file),
            interrupts=interrupts,
            confirm=_consent(view, yes),
            accept_drift=accept_drift,
            connect=called.connect,
        )
        return fleet.run(target, called.chosen, job).exit_code


def rollback(
    called: Called,
    target: str | None,
    *,
    playbook: Path | None,
    to: str,
    accept_drift: bool,
    yes: bool,
    json_lines: bool,
) -> int:
    """Go back on the hosts of `target`, or of the last rollout made from here. Returns the exit code."""
    record = Record(called.inventory.file)
    chosen = called.chosen
    runs: dict[str, str] = {}
    if target is None:
        last = record.last()
        runs = last.runs
        # The other way round: what was changed last goes back first.
        chosen = [host for name in reversed(runs) for host in called.inventory.resolve(name)]
        target = last.target
    book = inputs.load_playbook(playbook, "rollback")
    inputs.require_consent(yes, f"rollback {target}")
    view = console.choose(json_lines)
    with Interrupts() as interrupts:
        job = Job(
            action="rollback",
            playbook=book,
            payload=None,
            view=view,
            record=record,
            interrupts=interrupts,
            confirm=_consent(view, yes),
            accept_drift=accept_drift,
            of_runs=runs,
            to=to,
            connect=called.connect,
        )
        return fleet.run(target, chosen, job).exit_code


def _consent(view: console.View, yes: bool) -> Callable[[ChangeSet], bool]:
    def confirm(changes: ChangeSet) -> bool:
        if yes:
            return True
        view.text(["", *render(changes, diffs=False).splitlines(), ""])
        return inputs.ask(f"{changes.action} on {changes.host}?")

    return confirm
