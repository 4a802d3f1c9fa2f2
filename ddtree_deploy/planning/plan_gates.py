"""Plans of runs that install nothing: verify, bench, golden, calibrate, sweep, confirm. Pure."""

from __future__ import annotations

from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import archive
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.planning.plan import (
    NothingToDo,
    PlanResult,
    RunOptions,
    change_set,
    check_service,
    common_plan,
    fields_of,
    held_release,
    warnings_of,
)


def make_gates(
    host: Host, facts: Facts, playbook: Playbook, options: RunOptions, attachments: dict[str, bytes]
) -> PlanResult:
    """Plan a run that installs nothing: its steps, and the files that they need. Raises InputError."""
    check_service(host, facts)
    if host.service is None:
        raise InputError(
            f"the host has no service: there is nothing to {playbook.action}",
            file=host.file,
            line=host.line,
            field=f"hosts.{host.name}",
            host=host.name,
        )
    return _without_files(host, facts, playbook, options, attachments)


def make_confirm(
    host: Host, facts: Facts, playbook: Playbook, options: RunOptions
) -> PlanResult | NothingToDo:
    """Plan to call the held release good; nothing to do where none is held."""
    held = held_release(facts)
    if held is None:
        live = str((facts.installed or {}).get("release", ""))
        return NothingToDo(host.name, f"no release is held; live is {live or 'none of ours'}")
    return _without_files(host, facts, playbook, options, {}, back_to=held.run)


def _without_files(  # noqa: PLR0917
    host: Host,
    facts: Facts,
    playbook: Playbook,
    options: RunOptions,
    attachments: dict[str, bytes],
    back_to: str = "",
) -> PlanResult:
    blob = archive.build({**playbook.attachments, **attachments})
    live = next((r for r in facts.releases if r.run == (facts.installed or {}).get("release")), None)
    plan = common_plan(
        host,
        facts,
        playbook,
        options,
        payload=None,
        **fields_of(live),
        payload_digest=archive.digest(blob),
        targets=[],
        back_to=back_to,
    )
    return PlanResult(plan, blob, change_set(host, facts, playbook, plan, [], warnings_of(host, facts)))
