"""The exec of a rollout, on the wire: ask for facts; send the cargo. And what a failed exec means."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddtree_deploy.errors import DeployError, GateFailed, InputError
from ddtree_deploy.inputs.inventory import Host
from ddtree_deploy.onhost.wire.facts import Facts, unpack
from ddtree_deploy.onhost.wire.protocol import (
    FACTS_MARK,
    FactsRequest,
    Plan,
    ProtocolError,
    to_dict,
)
from ddtree_deploy.running import zipapp
from ddtree_deploy.ssh import Finished, Link, LinkLost, Stream, become, transport_error
from ddtree_deploy.text import safe

# Hashing all files and asking the driver for its GPUs takes seconds; a hung driver takes for ever.
FACTS_S = 120.0
CLOSE_S = 5.0
NOTHING_DONE = "nothing was touched"


@dataclass(frozen=True)
class Answer:
    """What a host is, and the process there that said so. It waits for a cargo, or the end of its input."""

    facts: Facts
    stream: Stream

    def close(self) -> None:
        """Nothing is to begin. Waits for the process: a host may allow one session at a time."""
        with contextlib.suppress(LinkLost):
            self.stream.end_input()
        self.stream.exit_status(CLOSE_S)
        self.stream.close()


def ask_facts(link: Link, host: Host, request: FactsRequest) -> Facts:
    """What the host is. Leaves no file there, and no process. Raises as `ask`."""
    answer = ask(link, host, request)
    answer.close()
    return answer.facts


def ask(link: Link, host: Host, request: FactsRequest) -> Answer:
    """The exec of a rollout: first what the host is. Leaves no file there.

    Raises:
        InputError: the host has no such Python.
        TransportError: the connection failed, or sudo wants a password.
        GateFailed: the host's Python ran but could not answer.
    """
    program = zipapp.facts_program(request)
    stream, said = _ask(link, host, program)
    if isinstance(said, Finished) and become.wanted(host, said):
        become.ask(link)  # before all else that is run there: what follows knows the password
        stream, said = _ask(link, host, program)
    if isinstance(said, Finished):
        raise explain_exec(host, "facts", said.rc, said.out, said.err)
    try:
        facts = unpack(said)
    except ProtocolError as error:
        raise GateFailed(
            f"the host's answer cannot be understood: {error}",
            stage="facts",
            host=host.name,
            state=NOTHING_DONE,
            next_command="ddtree-deploy --version (is another version's state on this host?)",
        ) from error
    return Answer(facts, stream)


def _ask(link: Link, host: Host, program: zipapp.Program) -> tuple[Stream, bytes | Finished]:
    # A login script may print before us: the answer is the marked line, wherever it is.
    return link.ask(
        link.command(host.python, "-I", "-S", "-c", program.code),
        program.request,
        program.sources,
        answer=FACTS_MARK.encode(),
        timeout=FACTS_S,
        stage="facts",
    )


def cargo(plan: Plan, run_dir: str, payload: bytes) -> bytes:
    """What the process that gave the facts gets on stdin, to launch a run: a header line, plan, payload."""
    text = json.dumps(to_dict(plan), separators=(",", ":")).encode()
    header = {"run_dir": run_dir, "plan": len(text), "payload": len(payload)}
    return json.dumps(header).encode() + b"\n" + text + payload


def run_dir_of(facts: Facts, run: str) -> str:
    """The run's folder on the host."""
    return f"{facts.site_dir}/runs/{run}"


def explain_exec(host: Host, stage: str, rc: int | None, out: bytes, err: bytes) -> DeployError:
    """Why a command of ours ended without its answer, from its exit status and what it wrote."""
    login = f"{host.user}@{host.address}" if host.user else host.address
    # The remote shell takes the words apart once more.
    retry = shlex.join(["ssh", "-p", str(host.port), login, f"{shlex.quote(host.python)} -V"])
    bad_host = partial(InputError, file=host.file, line=host.line, host=host.name)
    failed = partial(GateFailed, stage=stage, host=host.name, state=NOTHING_DONE, next_command=retry)
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    last = safe(lines[-1], 300) if lines else ""
    if host.become and any("sudo" in line for line in lines):
        return transport_error(
            host, stage, f"become: true needs sudo without a password for {host.user or 'you'}: {last}"
        )
    if rc in (126, 127):
        return bad_host(
            f"the host has no such interpreter: {host.python} ({last or f'exit status {rc}'})",
            field=f"hosts.{host.name}.python",
        )
    if rc is None:
        return transport_error(host, stage, "the connection ended before the host had answered")
    if last.startswith(f"{stage}: "):  # our own script, saying why
        why = last.removeprefix(f"{stage}: ")
        if why.startswith("state_dir: "):
            return bad_host(why.removeprefix("state_dir: "), field=f"hosts.{host.name}.state_dir")
        return failed(why)
    said = last or safe(out.decode(errors="replace").strip()[-300:]) or "it said nothing"
    return failed(f"the host's Python ended with exit status {rc}: {said}")


def parse_event(line: bytes) -> dict[str, Any] | None:
    """An event, or None for anything else that a shell may print on the channel."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: [[[[[...
        return None
    return event if isinstance(event, dict) and isinstance(event.get("e"), str) else None
