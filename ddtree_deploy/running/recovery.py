"""A run that died on the host is put right there, by its own runner; watched from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ddtree_deploy.errors import ContactLost
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import STATE_BROKEN
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.remote import parse_event, run_dir_of
from ddtree_deploy.ssh import Link, Stream
from ddtree_deploy.ssh.stream import LinkLost, StreamEnded

# A recovery may have to start a server that loads a large model, twice.
RECOVER_S = 7200.0


def recover_orphan(
    host: Host, link: Link, facts: Facts, run: str, emit: Callable[[dict[str, Any]], None]
) -> Outcome:
    """Finish or undo the dead run `run`. Exit code 0, 3 (a person is needed), 5 (somebody else is at it)
    or 8 (the host goes down; the rest is done when it boots).

    Raises ContactLost when the connection goes away before the recovery has said how it ended.
    """
    runner = f"{run_dir_of(facts, run)}/runner.pyz"
    stream = link.stream(
        link.command(facts.python, "-I", "-S", runner, "recover", facts.site_dir), stage="recover"
    )
    told = _watch(stream, emit)
    code = stream.exit_status()
    if code is None:
        raise ContactLost(
            "the connection was lost during the recovery",
            stage="recover",
            host=host.name,
            state="the recovery may go on by itself",
            next_command=f"ddtree-deploy status {host.name}",
        )
    said = stream.stderr.decode(errors="replace").strip().splitlines()
    return Outcome(
        host.name,
        "recover",
        code if code in (0, 3, 5, 8) else 3,
        run=run,
        verdict="pass" if code == 0 else "fail",
        state={0: "recovered", 8: "going down; recovered when it boots"}.get(code, STATE_BROKEN),
        reason="; ".join([*told, *said[-1:]]),
        next_command=f"ddtree-deploy status {host.name}",
    )


def _watch(stream: Stream, emit: Callable[[dict[str, Any]], None]) -> list[str]:
    """Show the recovery's events up to its end. Returns what it did, a line a run."""
    told: list[str] = []
    deadline = time.monotonic() + RECOVER_S
    try:
        while time.monotonic() < deadline:
            line = stream.line(1.0)
            event = parse_event(line) if line is not None else None
            if event is None:
                continue
            if event["e"] == "recovered":
                told.append(f"run {event['run']}: {event['reason']}")
            emit({"step": "recover", **event})
    except (StreamEnded, LinkLost):
        pass
    return told
