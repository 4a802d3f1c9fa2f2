"""A run that died on the host is put right there, by its own runner; watched from here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from ddtree_deploy.errors import ContactLost
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts
from ddtree_deploy.onhost.wire.protocol import STATE_BROKEN
from ddtree_deploy.running.outcome import Outcome
from ddtree_deploy.running.remote import parse_event, run_dir_of
from ddtree_deploy.running.sight import Sight
from ddtree_deploy.ssh import Link
from ddtree_deploy.ssh.stream import LinkLost, StreamEnded

# A recovery may have to start a server that loads a large model, twice.
RECOVER_S = 7200.0
GOING_DOWN = "going down; recovered when it boots"
Emit = Callable[[dict[str, Any]], None]


def recover_orphan(  # noqa: PLR0917
    host: Host, link: Link, facts: Facts, run: str, emit: Emit, sight: Sight
) -> Outcome:
    """Finish or undo the dead run `run`. Exit code 0, 3 (a person is needed), 5 (somebody else is at it)
    or 8 (the host goes down; the rest is done when it boots).

    Raises ContactLost when the connection goes away before the recovery has said how it ended.
    """
    lost = "the connection was lost during the recovery", "the recovery may go on by itself"
    words = ["recover", facts.site_dir]
    code, events, said = command_there(host, link, facts, run, words, emit, sight, lost)
    told = [f"run {e['run']}: {e['reason']}" for e in events if e["e"] == "recovered"]
    return Outcome(
        host.name,
        "recover",
        code if code in (0, 3, 5, 8) else 3,
        run=run,
        verdict="pass" if code == 0 else "fail",
        state={0: "recovered", 8: GOING_DOWN}.get(code, STATE_BROKEN),
        reason="; ".join([*told, *said]),
        next_command=f"ddtree-deploy status {host.name}",
    )


def command_there(  # noqa: PLR0917
    host: Host,
    link: Link,
    facts: Facts,
    run: str,
    words: list[str],
    emit: Emit,
    sight: Sight,
    lost: tuple[str, str],
) -> tuple[int, list[dict[str, Any]], list[str]]:
    """Have the runner of `run` do `words` on the host, and show its events. Returns its exit status, them,
    and its last line on stderr, if any.

    lost: message and state of the ContactLost that is raised when it does not say how it ended; an
    interrupt is told in that way, too: the host goes on.
    """
    runner = f"{run_dir_of(facts, run)}/runner.pyz"
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + RECOVER_S
    (message, state), code = lost, None
    sight.begin()
    try:
        stream = link.stream(link.command(facts.python, "-I", "-S", runner, *words), stage=words[0])
        with contextlib.suppress(StreamEnded, LinkLost):
            while time.monotonic() < deadline:
                line = stream.line(1.0)
                event = parse_event(line) if line is not None else None
                if event is not None:
                    events.append(event)
                    emit({"step": words[0], **event})
        code = stream.exit_status()
    except KeyboardInterrupt:
        message, state = "interrupted: contact lost", "the host goes on by itself"
    if code is None:
        raise ContactLost(
            message,
            stage=words[0],
            host=host.name,
            state=state,
            next_command=f"ddtree-deploy status {host.name}",
        )
    sight.end()
    return code, events, stream.stderr.decode(errors="replace").strip().splitlines()[-1:]
