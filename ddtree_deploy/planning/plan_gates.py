"""Plans of runs that install nothing: verify, bench, golden, calibrate, sweep, confirm. Pure."""

from __future__ import annotations

from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.planning.assemble import (
    NothingToDo,
    PlanResult,
    RunOptions,
    assemble,
    check_service,
    fields_of,
)
from ddtree_deploy.planning.known import Known


def make_gates(
    known: Known, playbook: Playbook, options: RunOptions, attachments: dict[str, bytes]
) -> PlanResult:
    """Plan a run that installs nothing: its steps, and the files that they need. Raises InputError."""
    check_service(known, accept_drift=True)  # a gate judges what runs
    if known.host.service is None:
        raise known.host.error(f"the host has no service: there is nothing to {playbook.action}")
    return _without_files(known, playbook, options, attachments)


def make_confirm(known: Known, playbook: Playbook, options: RunOptions) -> PlanResult | NothingToDo:
    """Plan to call the held release good; nothing to do where none is held."""
    if known.held is None:
        live = known.live or "none of ours"
        return NothingToDo(known.name, f"no release is held; live is {live}", missed=not known.live)
    return _without_files(known, playbook, options, {}, back_to=known.held.run)


def _without_files(
    known: Known, playbook: Playbook, options: RunOptions, attachments: dict[str, bytes], back_to: str = ""
) -> PlanResult:
    blob = archive.build({**playbook.attachments, **attachments})
    live = fields_of(known.release(known.live))
    return assemble(known, playbook, options, blob, **live, targets=[], back_to=back_to)
