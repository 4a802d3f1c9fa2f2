"""End the run that holds a host: asked in order, then killed and recovered, all of it on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtree_deploy.errors import ContactLost, LockedError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts, LockFacts
from ddtree_deploy.onhost.wire.protocol import STATE_BROKEN
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.remote import parse_event, run_dir_of
from ddtree_deploy.ssh import Link
from ddtree_deploy.ssh.stream import LinkLost, StreamEnded


def in_words(lock: LockFacts) -> str:
    """Who holds the lock, since when, at which step."""
    who = f"run {lock.run or '?'} of {lock.who or 'somebody who has not said'}"
    return (
        f"{who} holds the host since {lock.since or '?'}, at step {lock.step or '?'} (pid {lock.pid or '?'})"
    )


def refuse(host: Host, facts: Facts) -> LockedError:
    """What `unlock` says without --force while the runner lives."""
    return LockedError(
        in_words(facts.lock),
        stage="unlock",
        host=host.name,
        state="the run goes on, we touched nothing",
        next_command=f"ddtree-deploy attach {host.name}, or end it and put the host back: "
        f"ddtree-deploy unlock {host.name} --force",
    )


def force(
    host: Host, link: Link, facts: Facts, patience_s: float, emit: Callable[[dict[str, Any]], None]
) -> Outcome:
    """Have the host end its run. Exit code 0, 3 (a person is needed), 5 (something else holds the lock).

    Raises ContactLost when the connection goes away before the host has said how it ended.
    """
    runner = f"{run_dir_of(facts, facts.lock.run)}/runner.pyz"
    words = [facts.python, "-I", "-S", runner, "unlock", facts.site_dir, f"{patience_s:.0f}"]
    stream = link.stream(link.command(*words), stage="unlock")
    ended: dict[str, Any] = {}
    try:
        while not ended:
            line = stream.line(1.0)
            event = parse_event(line) if line is not None else None
            if event is not None:
                emit({"step": "unlock", **event})
                ended = event if event["e"] == "unlocked" else {}
    except (StreamEnded, LinkLost):
        pass
    code = stream.exit_status()
    said = stream.stderr.decode(errors="replace").strip().splitlines()
    if code is None:
        raise ContactLost(
            "the connection was lost while the run was being ended",
            stage="unlock",
            host=host.name,
            state="the host goes on by itself",
            next_command=f"ddtree-deploy status {host.name}",
        )
    good = code == 0
    reason = f"the run was {ended['how']}: {ended['reason']}" if ended else "; ".join(said[-1:])
    return Outcome(
        host.name,
        "unlock",
        code if code in (0, 5) else 3,
        run=facts.lock.run,
        verdict="pass" if good else "fail",
        state=str(ended.get("state", "")) if good else STATE_BROKEN,
        step="" if good else "unlock",
        reason=reason,
        next_command=f"ddtree-deploy status {host.name}",
    )
