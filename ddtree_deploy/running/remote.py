"""The exec of a rollout, on the wire: ask for facts; send the cargo. And what a failed exec means."""

from __future__ import annotations

import contextlib
import getpass
import json
import shlex
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ddtree_deploy.errors import NOTHING_DONE, DeployError, GateFailed, InputError
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
from ddtree_deploy.ssh import Finished, Link, LinkLost, Stream, Unbegun, become, transport_error
from ddtree_deploy.text import safe

# Hashing all files and asking the driver for its GPUs takes seconds; a hung driver takes for ever.
FACTS_S = 120.0
CLOSE_S = 5.0


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
        TransportError: the connection failed, or login shell or sudo did not let Python begin.
        GateFailed: the host's Python ran but could not answer.
    """
    program = zipapp.facts_program(request)
    stream, said = _ask(link, host, program)
    if isinstance(said, Unbegun) and become.wanted(host, said):
        if become.ask(link, host.python, said):  # before all else that is run there: what follows knows it
            stream, said = _ask(link, host, program)
        else:
            host = replace(host, become=False)  # sudo is not to blame
    if isinstance(said, Finished):
        begun = not isinstance(said, Unbegun)
        raise explain_exec(host, "facts", said.rc, said.out, said.err, begun=begun)
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
        begun=zipapp.BEGUN_MARK.encode(),
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


def explain_exec(
    host: Host, stage: str, rc: int | None, out: bytes, err: bytes, *, begun: bool = False
) -> DeployError:
    """Why a command of ours ended without its answer, from its exit status and what it wrote.

    begun: whether our program is known to have begun. Else login shell, sudo or interpreter may be to blame.
    """
    login = f"{host.user}@{host.address}" if host.user else host.address
    # The remote shell takes the words apart once more.
    retry = shlex.join(["ssh", "-p", str(host.port), login, f"{shlex.quote(host.python)} -V"])
    failed = partial(GateFailed, stage=stage, host=host.name, state=NOTHING_DONE, next_command=retry)
    last = become.last_line(err)
    if rc is not None and last.startswith(f"{stage}: "):  # our own script, saying why
        why = last.removeprefix(f"{stage}: ")
        if why.startswith("state_dir: "):
            return _bad_host(host, why.removeprefix("state_dir: "), "state_dir")
        return failed(why)
    if not begun and (error := _not_begun(host, stage, rc, out, err)):
        return error
    if rc is None:
        return transport_error(host, stage, "the connection ended before the host had answered")
    said = last or become.last_line(out) or "it said nothing"
    return failed(f"the host's Python ended with exit status {rc}: {said}")


def _not_begun(host: Host, stage: str, rc: int | None, out: bytes, err: bytes) -> DeployError | None:
    last, lines = become.last_line(err), err.decode(errors="replace").splitlines()
    about = next((line for line in lines if host.python.removeprefix("~") in line), "")
    missing = rc == 127 or "not found" in about.lower()
    if rc == 126 or (missing and (about or not last)):
        said = safe(about, 300) or last or f"exit status {rc}"
        return _bad_host(host, f"the host has no such interpreter: {host.python} ({said})", "python")
    broken = become.pythons_own(err, host.python)
    if host.become and rc == 127 and "sudo" in last:
        return transport_error(host, "sudo", f"become: true, and the host has no sudo: {last}")
    if host.become and last and not broken and rc not in become.NOT_OF_SUDO:
        return become.refusal(host, err)
    if rc is None:
        return None
    said = broken or last or become.last_line(out) or "it said nothing"
    who = f"the login shell of {host.user or getpass.getuser()}"
    return transport_error(
        host, stage, f"{host.python} did not begin: {who} ended with exit status {rc}: {said}"
    )


def _bad_host(host: Host, message: str, key: str) -> InputError:
    place = f"hosts.{host.name}.{key}"
    return InputError(message, file=host.file, line=host.line, host=host.name, field=place)


def parse_event(line: bytes) -> dict[str, Any] | None:
    """An event, or None for anything else that a shell may print on the channel."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: [[[[[...
        return None
    return event if isinstance(event, dict) and isinstance(event.get("e"), str) else None
