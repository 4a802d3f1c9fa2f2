"""rollout and rollback: the same road over a fleet.

What takes long to import is imported once the input is known to be good and the host has been called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.ahead import Called

if TYPE_CHECKING:
    from ddtree_deploy.console import View
    from ddtree_deploy.inputs.inventory import Host
    from ddtree_deploy.planning.changes import ChangeSet


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
    return _run(
        called,
        target,
        called.chosen,
        yes=yes,
        json_lines=json_lines,
        action="rollout",
        playbook=book,
        payload=load,
        accept_drift=accept_drift,
    )


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
    chosen = called.chosen
    runs: dict[str, str] = {}
    if target is None:
        from ddtree_deploy.running.record import Record

        last = Record(called.inventory.file).last()
        runs = last.runs
        # The other way round: what was changed last goes back first.
        chosen = [host for name in reversed(runs) for host in called.inventory.resolve(name)]
        target = last.target
    book = inputs.load_playbook(playbook, "rollback")
    inputs.require_consent(yes, f"rollback {target}")
    return _run(
        called,
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


def _run(called: Called, target: str, chosen: list[Host], *, yes: bool, json_lines: bool, **job: Any) -> int:
    called.log_in()
    from ddtree_deploy import console
    from ddtree_deploy.running import fleet
    from ddtree_deploy.running.interrupts import Interrupts
    from ddtree_deploy.running.record import Record
    from ddtree_deploy.running.rollout import Job

    view = console.choose(json_lines)
    with Interrupts() as interrupts:
        made = Job(
            view=view,
            record=Record(called.inventory.file),
            interrupts=interrupts,
            confirm=_consent(view, yes),
            connect=called.connect,
            **job,
        )
        return fleet.run(target, chosen, made).exit_code


def _consent(view: View, yes: bool) -> Callable[[ChangeSet], bool]:
    def confirm(changes: ChangeSet) -> bool:
        from ddtree_deploy.planning.changes import render

        if yes:
            return True
        view.text(["", *render(changes, diffs=False).splitlines(), ""])
        return inputs.ask(f"{changes.action} on {changes.host}?")

    return confirm
