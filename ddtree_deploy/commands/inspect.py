"""plan, status, drift, releases: what would change, and what is. They only read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from ddtree_deploy import ssh
from ddtree_deploy.commands import inputs
from ddtree_deploy.commands.failures import error_event
from ddtree_deploy.commands.options import (
    AcceptDrift,
    AnyTarget,
    Hosts,
    Json,
    PayloadDir,
    PlaybookFile,
    Target,
)
from ddtree_deploy.errors import NOTHING_DONE, DeployError, DriftError, InputError, gravest
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.planning import drift_report, going_back
from ddtree_deploy.planning.assemble import RunOptions, facts_request
from ddtree_deploy.planning.changes import ChangeSet, render
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan import make_rollout
from ddtree_deploy.running import releases_report
from ddtree_deploy.running.complaint import complain
from ddtree_deploy.running.remote import ask_facts
from ddtree_deploy.running.rollout import who
from ddtree_deploy.running.status import describe, lines_of


def plan(  # noqa: PLR0917
    target: Target,
    playbook: PlaybookFile = None,
    payload: PayloadDir = None,
    hosts: Hosts = None,
    accept_drift: AcceptDrift = False,
    json_lines: Json = False,
) -> int:
    """Show what a rollout would change: files with their diffs, launch command, steps. Touches nothing."""
    chosen = inputs.load_hosts(hosts).resolve(target)
    book = inputs.load_rollout(playbook, chosen)
    load = inputs.load_payload(payload)

    def one(host: Host) -> None:
        changes, drift = _changes(known_of(host, load, contents=True), load, book, accept_drift)
        text = f"{render(changes)}\ndigest    {changes.digest}"
        _tell(json_lines, "changes", host, asdict(changes), text)
        if drift is not None:
            raise drift

    return _each(chosen, one, json_lines)


def _changes(
    known: Known, load: Payload, book: Playbook, accept_drift: bool
) -> tuple[ChangeSet, DriftError | None]:
    """The changes; with foreign files they are shown as if accepted, and the refusal comes along."""
    drift: DriftError | None = None
    for accept in (accept_drift, True):
        options = RunOptions.at(datetime.now(timezone.utc), "000000", who(), accept_drift=accept)
        try:
            return make_rollout(known, load, book, options).changes, drift
        except DriftError as error:
            drift = drift or error
    assert drift is not None
    raise drift


def status(
    target: AnyTarget = None, payload: PayloadDir = None, hosts: Hosts = None, json_lines: Json = False
) -> int:
    """Show release, live files (base, ours, foreign), service and lock. Without TARGET: of all hosts."""
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target) if target else list(inventory.hosts.values())
    # Without a payload the files of the installed release can still be judged.
    load = inputs.load_payload(payload) if payload or inputs.PAYLOAD.exists() else None

    def one(host: Host) -> None:
        data = describe(known_of(host, load, serving=True), load)
        _tell(json_lines, "status", host, data, "\n".join(lines_of(host.name, data)))

    return _each(chosen, one, json_lines)


def drift(target: Target, payload: PayloadDir = None, hosts: Hosts = None, json_lines: Json = False) -> int:
    """Show each live file as base, ours (of a release) or foreign, with a diff, and whether the service shows
    the live release. Exit 6 if not, or if a file has moved."""
    chosen = inputs.load_hosts(hosts).resolve(target)
    load = inputs.load_payload(payload) if payload or inputs.PAYLOAD.exists() else None

    def one(host: Host) -> None:
        known = known_of(host, load, contents=True, serving=True)
        files = drift_report.report(known, load)
        moved = [f.ref for f in files if f.moved]
        service = known.facts.service
        seen = {key: getattr(service, key, []) for key in ("differs", "not_live", "untold")}
        data = {
            "moved": moved,
            "files": [asdict(f) for f in files],
            "service": seen,
        }
        lines = [*drift_report.lines_of(host.name, files), *drift_report.service_lines(**seen)]
        _tell(json_lines, "drift", host, data, "\n".join(lines))
        if moved:
            raise DriftError(
                f"{len(moved)} live files are not what the release or upstream put there: "
                f"{', '.join(moved)}; put them right on the host, or take them into the backup and go on",
                stage="drift",
                host=host.name,
                state=NOTHING_DONE,
                next_command=f"ddtree-deploy rollout {host.name} --accept-drift",
            )
        if seen["not_live"]:
            raise DriftError(
                f"the service does not show the live release: {'; '.join(seen['not_live'])}",
                stage="drift",
                host=host.name,
                state=NOTHING_DONE,
                next_command=f"ddtree-deploy rollout {host.name} --accept-drift",
            )

    return _each(chosen, one, json_lines)


def releases(target: Target, hosts: Hosts = None, json_lines: Json = False) -> int:
    """List what was rolled out on a host: time, digest, who, verdict, and where `rollback --to` can go."""
    chosen = inputs.load_hosts(hosts).resolve(target)

    def one(host: Host) -> None:
        known = known_of(host, None)
        rows, back = releases_report.rows(known), going_back.targets(known.facts)
        data = {"back_to": back, "releases": [asdict(row) for row in rows]}
        _tell(json_lines, "releases", host, data, "\n".join(releases_report.lines_of(host.name, rows, back)))

    return _each(chosen, one, json_lines)


def known_of(host: Host, payload: Payload | None, *, contents: bool = False, serving: bool = False) -> Known:
    """Connect, ask, hang up. serving: ask the server, too; without its key where that is not set here."""
    secrets: dict[str, str] | None = None
    if serving:
        secrets = {}
        with contextlib.suppress(InputError):
            secrets = host.secrets()
    request = facts_request(host, payload, contents=contents, secrets=secrets)
    with ssh.connect(host) as link:
        return Known(host, ask_facts(link, host, request))


def _tell(json_lines: bool, event: str, host: Host, data: dict[str, Any], text: str) -> None:
    """What was found: as an event, or in words."""
    print(json.dumps({"e": event, "host": host.name, "run": "", **data}) if json_lines else text)


def _each(hosts: list[Host], one: Callable[[Host], None], json_lines: bool) -> int:
    """Do `one` on every host; an error is printed and does not keep the others from their turn."""
    codes = []
    for host in hosts:
        try:
            one(host)
        except DeployError as error:
            error.host = error.host or host.name
            codes.append(error.exit_code)
            if json_lines:
                print(json.dumps(error_event(error)))
            complain(error.render())
    return gravest(codes)
