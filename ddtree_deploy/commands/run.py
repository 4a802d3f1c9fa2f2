"""rollout and rollback: the same road over a fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ddtree_deploy import console
from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.options import (
    AcceptDrift,
    AnyTarget,
    Expect,
    Hosts,
    Json,
    PayloadDir,
    PlaybookFile,
    Target,
    Yes,
)
from ddtree_deploy.console import View
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs.inventory import Host, Inventory
from ddtree_deploy.planning import digest
from ddtree_deploy.planning.changes import ChangeSet, render
from ddtree_deploy.planning.plan import make_rollback, make_rollout
from ddtree_deploy.running import fleet
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.record import Record
from ddtree_deploy.running.rollout import Job

QUESTION = "{action} on {host}?"


def rollout(  # noqa: PLR0917
    target: Target,
    playbook: PlaybookFile = None,
    payload: PayloadDir = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    expect: Expect = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> int:
    """Bring the payload onto hosts, through every gate; a failed gate puts the host back as it was."""
    for text in expect or ():
        if problem := digest.problem(text):
            raise InputError(problem, field="--expect", next_command=f"ddtree-deploy plan {target}")
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target)
    book = inputs.load_rollout(playbook, chosen)
    load = inputs.load_payload(payload)
    inputs.require_consent(yes, f"rollout {target}")
    return start(
        inventory,
        target,
        chosen,
        question=None if yes else QUESTION,
        json_lines=json_lines,
        playbook=book,
        make=lambda known, options: make_rollout(known, load, book, options),
        payload=load,
        accept_drift=accept_drift,
        expect=tuple(expect or ()),
    ).exit_code


def rollback(  # noqa: PLR0917
    target: AnyTarget = None,
    to: Annotated[
        str, typer.Option("--to", metavar="RELEASE", help="A release (see `releases`), or `base`.")
    ] = "",
    playbook: PlaybookFile = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    yes: Yes = False,
    json_lines: Json = False,
) -> int:
    """Go back from the live release to the one before it. Without TARGET: undo the last rollout from here."""
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
    return start(
        inventory,
        target,
        chosen,
        question=None if yes else QUESTION,
        json_lines=json_lines,
        playbook=book,
        make=lambda known, options: make_rollback(
            known, book, options, of_run=runs.get(known.name, ""), to=to
        ),
        accept_drift=accept_drift,
    ).exit_code


def start(
    inventory: Inventory,
    target: str,
    chosen: list[Host],
    *,
    question: str | None,
    json_lines: bool,
    **job: Any,
) -> fleet.FleetOutcome:
    """Do a job on the chosen hosts. With a `question`, it is asked of each, with the plan shown."""
    view = console.choose(json_lines)
    with Interrupts() as interrupts:
        made = Job(
            view=view,
            record=Record(inventory.file),
            interrupts=interrupts,
            confirm=_consent(view, question),
            **job,
        )
        return fleet.run(target, chosen, made)


def _consent(view: View, question: str | None) -> Callable[[ChangeSet], bool]:
    def confirm(changes: ChangeSet) -> bool:
        if question is None:
            return True
        view.text(["", *render(changes, diffs=False).splitlines(), ""])
        return inputs.ask(question.format(action=changes.action, host=changes.host))

    return confirm
