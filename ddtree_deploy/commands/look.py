"""plan and status: what would change, and what is. Both only read."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ddtree_deploy import ssh
from ddtree_deploy.commands import inputs
from ddtree_deploy.errors import DeployError, DriftError, gravest
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.inputs.payload import Payload
from ddtree_deploy.inputs.playbook import Playbook
from ddtree_deploy.planning import drift_report, going_back
from ddtree_deploy.planning.assemble import RunOptions, facts_request
from ddtree_deploy.planning.changes import ChangeSet, render
from ddtree_deploy.planning.known import Known
from ddtree_deploy.planning.plan import make_rollout
from ddtree_deploy.running import next_command, releases_report
from ddtree_deploy.running.remote import ask_facts
from ddtree_deploy.running.status import describe, lines_of

Say = Callable[[str], None]


def plan(
    target: str,
    *,
    hosts: Path | None,
    payload: Path | None,
    playbook: Path | None,
    accept_drift: bool,
    json_lines: bool,
    say: Say,
    warn: Say,
) -> int:
    """Print what a rollout would change on each host, also after one that fails; returns the gravest code."""
    chosen = inputs.load_hosts(hosts).resolve(target)
    book = inputs.load_rollout(playbook, chosen)
    load = inputs.load_payload(payload)

    def one(host: Host) -> int:
        changes, drift = _changes(known_of(host, load, contents=True), load, book, accept_drift)
        if json_lines:
            say(json.dumps({"e": "changes", "host": host.name, "run": "", **asdict(changes)}))
        else:
            say(render(changes))
        if drift is not None:
            raise drift
        return 0

    return _each(chosen, one, json_lines, say, warn)


def _changes(
    known: Known, load: Payload, book: Playbook, accept_drift: bool
) -> tuple[ChangeSet, DriftError | None]:
    """The changes; with foreign files they are shown as if accepted, and the refusal comes along."""
    drift: DriftError | None = None
    for accept in (accept_drift, True):
        options = RunOptions.at(datetime.now(timezone.utc), "000000", _who(), accept_drift=accept)
        try:
            return make_rollout(known, load, book, options).changes, drift
        except DriftError as error:
            drift = drift or error
    assert drift is not None
    raise drift


def status(
    target: str | None,
    *,
    hosts: Path | None,
    payload: Path | None,
    json_lines: bool,
    say: Say,
    warn: Say,
) -> int:
    """Print release, live files, service and lock of each host. Without a target: of all hosts."""
    inventory = inputs.load_hosts(hosts)
    chosen = inventory.resolve(target) if target else list(inventory.hosts.values())
    # Without a payload the files of the installed release can still be judged.
    load = inputs.load_payload(payload) if payload or inputs.PAYLOAD.exists() else None

    def one(host: Host) -> int:
        data = describe(known_of(host, load), load)
        if json_lines:
            say(json.dumps({"e": "status", "host": host.name, "run": "", **data}))
        else:
            say("\n".join(lines_of(host.name, data)))
        return 0

    return _each(chosen, one, json_lines, say, warn)


def drift(
    target: str, *, hosts: Path | None, payload: Path | None, json_lines: bool, say: Say, warn: Say
) -> int:
    """Print each live file as base, ours or foreign, with the differences. Returns 6 where one has moved."""
    chosen = inputs.load_hosts(hosts).resolve(target)
    load = inputs.load_payload(payload) if payload or inputs.PAYLOAD.exists() else None

    def one(host: Host) -> int:
        files = drift_report.report(known_of(host, load, contents=True), load)
        moved = [f.ref for f in files if f.moved]
        if json_lines:
            listed = [asdict(f) for f in files]
            say(json.dumps({"e": "drift", "host": host.name, "run": "", "moved": moved, "files": listed}))
        else:
            say("\n".join(drift_report.lines_of(host.name, files)))
        if moved:
            raise DriftError(
                f"{len(moved)} live files are not what the release or upstream put there: "
                f"{', '.join(moved)}; put them right on the host, or take them into the backup and go on",
                stage="drift",
                host=host.name,
                state="nothing was touched",
                next_command=f"ddtree-deploy rollout {host.name} --accept-drift",
            )
        return 0

    return _each(chosen, one, json_lines, say, warn)


def releases(target: str, *, hosts: Path | None, json_lines: bool, say: Say, warn: Say) -> int:
    """Print what was rolled out on each host: time, digest, who, verdict, and what can be gone back to."""
    chosen = inputs.load_hosts(hosts).resolve(target)

    def one(host: Host) -> int:
        known = known_of(host, None)
        rows, back = releases_report.rows(known), going_back.targets(known.facts)
        if json_lines:
            listed = [asdict(row) for row in rows]
            say(
                json.dumps(
                    {"e": "releases", "host": host.name, "run": "", "back_to": back, "releases": listed}
                )
            )
        else:
            say("\n".join(releases_report.lines_of(host.name, rows, back)))
        return 0

    return _each(chosen, one, json_lines, say, warn)


def known_of(host: Host, payload: Payload | None, *, contents: bool = False) -> Known:
    """Connect, ask, hang up."""
    with ssh.connect(host) as link:
        return Known(host, ask_facts(link, host, facts_request(host, payload, contents=contents)))


def _each(hosts: list[Host], one: Callable[[Host], int], json_lines: bool, say: Say, warn: Say) -> int:
    """Do `one` on every host; an error is printed and does not keep the others from their turn."""
    codes = []
    for host in hosts:
        try:
            codes.append(one(host))
        except DeployError as error:
            error.host = error.host or host.name
            codes.append(error.exit_code)
            if json_lines:
                say(json.dumps(error_event(error)))
            warn(error.render())
    return gravest(codes)


def error_event(error: DeployError) -> dict[str, Any]:
    """An error as an event of `--json`."""
    return {
        "e": "error",
        "host": error.host,
        "run": "",
        "exit": error.exit_code,
        "step": error.stage,
        "reason": error.message,
        "state": error.state,
        "next": next_command.typed(error.next_command),
    }


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
